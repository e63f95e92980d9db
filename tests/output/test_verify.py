"""Acceptance tests as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable

import jsonschema

from gpu_provision.output import views
from gpu_provision.output.findings import document, output_schema
from gpu_provision.verify.run import Check, CheckOutcome, Verification


def check(node: str, outcome: CheckOutcome, reason: str = "", sentence: str = "nouveau is not loaded") -> Check:
    return Check(sentence=sentence, node=node, outcome=outcome, reason=reason, seconds=0.1, test="x")


FOUND = Verification(
    checks=(
        check("gpu-01", CheckOutcome.PASSED),
        check("gpu-01", CheckOutcome.SKIPPED, "dcgm_exporter is off", "dcgm exporter answers for every gpu"),
        check("gpu-02", CheckOutcome.FAILED, "/proc/modules has nouveau"),
        check("gpu-03", CheckOutcome.FAILED, "/proc/modules has nouveau"),
        check("gpu-04", CheckOutcome.UNREACHABLE, "cannot be logged in to: timed out"),
        check("gpu-04", CheckOutcome.UNREACHABLE, "cannot be logged in to: timed out", "no reboot is pending"),
        check("", CheckOutcome.PASSED, sentence="every daemonset is complete"),
    )
)


def test_table_then_what_did_not_pass_then_the_sum(golden: Callable[[str, str], None]) -> None:
    """Worst first; equal reasons together; a silent host is one line."""
    golden("verify", views.verification_text(FOUND))
    assert views.verification_text(Verification(checks=())) == "no check selected"
    made = document("verify", inventory="prod", **views.verification_document(FOUND))
    jsonschema.Draft202012Validator(output_schema()).validate(made)
    assert made["passed"] is False
    assert [each["outcome"] for each in made["checks"]][:3] == ["passed", "skipped", "failed"]


def test_a_common_reason_to_skip_is_printed_once() -> None:
    reason = "there is no driver"
    checks = [
        check(node, CheckOutcome.SKIPPED, reason, sentence)
        for sentence in ("the driver is loaded", "vectorAdd passes")
        for node in ("gpu-01", "gpu-02")
    ]
    told = views.verification_text(Verification(checks=(*checks, check("gpu-03", CheckOutcome.SKIPPED, reason))))
    assert "skipped: gpu-01, gpu-02: the driver is loaded; vectorAdd passes\n" in told
    assert told.count(reason) == 2
