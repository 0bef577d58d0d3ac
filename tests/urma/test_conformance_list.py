# SPDX-License-Identifier: Apache-2.0
"""Every row of the conformance list (URMA specification 14) has its tests; a renamed one is told here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIST: dict[int, tuple[str, ...]] = {
    1: ("urma/test_layout.py: published_sizes_and_offsets, on_both_machines, functions_are_there, flag_words",),
    2: ("urma/test_calls.py: init_and_uninit",),
    3: ("urma/test_calls.py: device_that_is_not_there, depths_of_completion_queues, device_list_before_init",),
    4: ("urma/test_calls.py: in_use_is_not_deleted, ending_nothing",),
    5: ("urma/test_calls.py: jetty_needs_a_shared",),
    6: ("urma/test_calls.py: order_types_of_send_queues",),
    7: ("urma/test_calls.py: access_sets",),
    8: ("urma/test_calls.py: token_id_and_its_bit",),
    9: ("urma/test_calls.py: imports_ask_for_a_token",),
    10: ("urma/test_calls.py: polling_flushing_and_waiting",),
    11: ("urma/test_calls.py: posting_nothing",),
    12: ("urma/test_reading.py: owner_does_nothing",),
    13: ("urma/test_lists.py: list_of_4096",),
    14: ("urma/test_lists.py: full_queue_takes",),
    15: ("urma/test_lists.py: unsignalled_requests, never_signals",),
    16: ("urma/test_lists.py: malformed_request",),
    17: ("urma/test_reading.py: wrong_secret", "urma/test_lists.py: token_value_is_compared"),
    18: ("urma/test_reading.py: writes_need_the_right", "urma/test_lists.py: write_needs_the_right"),
    19: ("urma/test_reading.py: bound_is_checked",),
    20: ("urma/test_reading.py: reaches_over_the_end",),
    21: ("urma/test_reading.py: revoked_segment_and_its_memory",),
    22: ("urma/test_reading.py: revoking_during_reads",),
    23: ("urma/test_lists.py: ends_the_queue_in_the_order, one_marker",),
    24: ("urma/test_reading.py: dead_owner_is_told, killed_during_lists, pid_of_a_dead_owner",),
    25: ("urma/test_reading.py: silence_as_on_hardware",),
    26: ("urma/test_lists.py: more_completions_than",),
    27: ("urma/test_lists.py: one_wake_up", "urma/test_calls.py: missing_acknowledgement"),
    28: ("urma/test_lists.py: impossible_shape, several_pieces_and_one_of_no_bytes",),
    29: ("urma/test_ticket.py: round_trip, flipped_byte, each_field, ticket_of_hardware",),
    30: ("urma/test_reading.py: bound_is_checked",),
    31: ("urma/test_reading.py: rows_are_those_that_numpy_takes",),
    32: ("urma/test_reading.py: one_native_call_and_needs, one_native_call_per_list",),
    33: ("urma/test_reading.py: destination_that_is_not_registered, destinations_with_gaps",),
    34: (
        "urma/test_faults.py: right_bytes_or_an_error, two_queues_swapped, only_completion_order",
        "urma/test_soak.py: soak",
    ),
    35: ("urma/test_reading.py: closing_in_any_order, has_one_reference",),
    36: ("urma/test_reading.py: forked_child",),
    37: (
        "urma/test_library.py: no_library_is_told, no_library, profile_is_told, only_taken_by_its_name",
        "urma/test_library.py: lacks_a_function",
    ),
    38: ("urma/test_reading.py: no_secret_is_shown", "bench/test_urma_arm.py: no_token_is_in_a_result_file"),
    39: ("urma/test_library.py: profile_is_told, only_taken_by_its_name", "bench/test_urma_arm.py: b1_the_label"),
    40: ("bench/test_urma_arm.py: same_rows_over_urma_direct_and_tcp",),
    41: ("urma/test_reading.py: threads_on_one_queue",),
    42: ("urma/test_soak.py: short_soak",),
}
"""Row -> "file: a word of each test's name, ...".  The sanitizers of row 42 run native/tests/test_urma.c; its hour is `make soak`."""


def names(file: str) -> list[str]:
    tree = ast.parse((TESTS / file).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_every_row_of_the_list_is_here() -> None:
    page = (TESTS.parent / "docs" / "spec" / "urma.md").read_text()
    section = page[page.index("## 14. Conformance list") : page.index("## 15.")]
    rows = {
        int(number) for number in re.findall(r"^\| (?:<a id=\"[^\"]*\"></a>)?(\d+)(?: K)? \|", section, re.MULTILINE)
    }
    assert rows == set(LIST)
    assert "test_urma.c" in {each.name for each in (TESTS.parent / "native" / "tests").iterdir()}
    assert "tests.urma.soak" in (TESTS.parent / "Makefile").read_text()


def test_every_row_has_its_tests() -> None:
    missing = []
    for row, entries in LIST.items():
        for entry in entries:
            file, _, wanted = entry.partition(": ")
            there = names(file)
            missing += [
                f"{row}: {word} in {file}"
                for word in wanted.split(", ")
                if not any(word.replace(" ", "_") in name for name in there)
            ]
    assert missing == []
