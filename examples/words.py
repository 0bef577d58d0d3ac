# SPDX-License-Identifier: Apache-2.0
"""The small sentence-embedding model of the examples, from the files that its package ships; nothing is downloaded."""

import logging
import sys
from pathlib import Path

try:
    import wordllama
except ImportError:
    sys.exit("this example needs the extra `examples`: in the source tree `make dev`, or pip install -e '.[examples]'")

logging.getLogger().setLevel(logging.WARNING)  # importing wordllama turns INFO on for every logger


def load_model() -> wordllama.WordLlamaInference:
    """256 values for each of 32,000 tokens, and the tokenizer."""
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
