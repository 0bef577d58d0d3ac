# SPDX-License-Identifier: Apache-2.0
"""Every refused call says what the errno means for that operation, and the fix."""

import ast
import errno
from pathlib import Path

import pytest

import obmm
from obmm.errors import ObmmError, errno_name, explain
from obmm.explanations import EXPLANATIONS
from obmm.operations import OF_THE_DRIVER, Operation, called
from obmm.sdk.codes import Code as SdkCode
from obmm.sdk.codes import c_name, hint
from obmm.sdk.errors import SdkError
from obmm.urma.codes import Status
from obmm.urma.errors import of_status


@pytest.mark.parametrize(("operation", "name"), list(EXPLANATIONS))
def test_every_entry_is_complete(operation, name):
    assert hasattr(errno, name)
    for cause in EXPLANATIONS[operation, name]:
        assert cause.rules
        assert len(cause.meaning) > 10
        assert len(cause.fix) >= 5
        assert not cause.meaning.endswith(".")


@pytest.mark.parametrize("operation", OF_THE_DRIVER)
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


NAMING = ("because", "refused", "whole", "text", "raw", "seconds", "wrong_type", "to_fill", "to_read")
OF_LIBRARIES = ("answered", "pointer", "status", "_call", "_locking", "_owners", "_transfer", "_right")


def named_in(path: Path) -> set[str]:
    """Operations that a module names where an error or a check of an argument takes one."""
    library = path.parent.name in ("sdk", "urma") and not path.name.startswith("standin")
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [keyword.value for keyword in node.keywords if keyword.arg == "operation"]
        if name in NAMING or (library and (name in OF_LIBRARIES or name.startswith("check_"))):
            given += node.args[:1]
        found |= {one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return found if library else {one for one in found if one.isupper() and one.replace("_", "").isalpha()}


PACKAGE = Path(obmm.__file__).parent


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_operation_that_an_error_names_is_one(path):
    assert named_in(path) <= set(Operation)


def test_functions_of_the_libraries_are_found_where_errors_name_them():
    """So that the test above has something to compare."""
    assert {"map", "lease_free", "allocate_with_provider"} <= named_in(PACKAGE / "sdk" / "calls.py")
    assert {"read_many", "create_jfc"} <= named_in(PACKAGE / "urma" / "queue.py")
    assert "attach" in named_in(PACKAGE / "urma" / "target.py")


@pytest.mark.parametrize("operation", Operation)
def test_every_operation_is_called_by_the_name_that_errors_print(operation):
    assert operation in called(operation.printed)
    assert called(operation)[0] is operation
    assert set(called(operation.printed.upper())) == set(called(operation.printed.lower()))


@pytest.mark.parametrize("code", [code for code in SdkCode if code])
def test_a_code_of_the_sdk_is_explained_by_number_and_names(code):
    operation = (
        "write_lock" if code in (SdkCode.LOCK_NOT_SUPPORTED, SdkCode.LOCK_ALREADY_LOCKED, SdkCode.DLOCK) else "map"
    )
    error = SdkError.answered(operation, code, 0.1, "a library")
    text = explain(f"sdk.{operation}", str(int(code)))
    assert hint(operation, code).split("; fix: ")[0] in text
    assert {
        explain(operation, name)
        for name in (c_name(code), c_name(code).lower(), c_name(code).removeprefix("UBSM_ERR_"))
    } == {text}
    assert text.splitlines()[1] in explain(error.operation, errno_name(error.errno))


@pytest.mark.parametrize("status", [status for status in Status if status])
def test_a_status_of_urma_is_explained_by_number_and_name(status):
    error = of_status("read_many", status, 0, 1, 0.1, "")
    text = explain("urma.read_many", str(int(status)))
    assert error.hint.split("; fix: ")[0] in text
    assert explain("read_many", status.name) == text
    assert text.splitlines()[1] in explain(error.operation, errno_name(error.errno))


@pytest.mark.parametrize("operation", Operation)
def test_every_operation_is_explained(operation):
    assert [name for of, name in EXPLANATIONS if of == operation]
