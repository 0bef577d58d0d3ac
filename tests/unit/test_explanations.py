# SPDX-License-Identifier: Apache-2.0
"""Every refused call says what the errno means for that operation, and the fix."""

import errno

import pytest

from obmm.errors import ObmmError, explain
from obmm.explanations import EXPLANATIONS, OPERATIONS


@pytest.mark.parametrize(("operation", "name"), list(EXPLANATIONS))
def test_every_entry_is_complete(operation, name):
    assert hasattr(errno, name)
    for cause in EXPLANATIONS[operation, name]:
        assert cause.rules
        assert len(cause.meaning) > 10
        assert len(cause.fix) >= 5
        assert not cause.meaning.endswith(".")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_gate_is_explained_for_every_operation(operation):
    assert "fix:" in explain(operation, "EOPNOTSUPP")


def test_error_names_operation_value_meaning_and_fix():
    error = ObmmError.refused("IMPORT", errno.EINVAL, address=0xFFFFFFC00000, length=4096)
    text = str(error)
    assert error.errno == errno.EINVAL
    assert error.operation == "IMPORT"
    for part in ("IMPORT(", "address=0xffffffc00000", "EINVAL", "[I14]", "fix:"):
        assert part in text


def test_an_unknown_answer_admits_it():
    assert "no rule of the driver specification" in str(ObmmError.refused("EXPORT", errno.EXDEV))


def test_explain_refuses_what_it_does_not_know():
    with pytest.raises(LookupError):
        explain("EXPORT", "EXDEV")


@pytest.mark.parametrize(("operation", "name"), list(EXPLANATIONS))
def test_every_entry_reaches_the_error_of_its_errno(operation, name):
    """EOPNOTSUPP and ENOTSUP are one number with two names."""
    assert EXPLANATIONS[operation, name][0].meaning in str(ObmmError.refused(operation, getattr(errno, name)))
