# SPDX-License-Identifier: Apache-2.0
"""What a report says, as one object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from obmm.bench import decision, headlines, published
from obmm.bench.results import Document

FORMAT, VERSION = "obmm-bench-report", 1


def told(documents: Sequence[Document], names: Sequence[str], budgets: tuple[float, ...]) -> dict[str, Any]:
    """Headline figures, verdicts with their sentence, marks and what was measured on a busy machine, file by file."""
    files = [
        {
            "name": name,
            "environment": document["environment"],
            "marks": sorted({arm["mark"] for arm in document["arms"] if arm["mark"]}),
            "headlines": document["headlines"],
            "decision": {
                "sentence": decision.sentence(document, budgets),
                "verdicts": [asdict(verdict) for verdict in decision.verdicts(document, budgets)],
            },
            "busy": [
                {"arm": r["arm"], "workload": r["workload"], "case": r["case"], **r["surroundings"]}
                for r in document["results"]
                if r["busy"]
            ],
            "unavailable": document["unavailable"],
            "published": [list(pair) for pair in published.FIGURES] if published.beside(document) else [],
        }
        for name, document in zip(names, documents, strict=True)
    ]
    return {"format": FORMAT, "version": VERSION, "files": files, "across": headlines.across(documents)}
