"""The log of requests, as those read it who look while it grows."""

from __future__ import annotations

from pathlib import Path

from gpu_provision.sandbox.apiserver.requestlog import Request, RequestLog, requests


def test_a_line_that_is_still_being_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    """A reader may see a write in parts."""
    path = tmp_path / "requests.log"
    log = RequestLog(path)
    one, other = (
        Request("2026-11-22", "GET", f"/api/v1/{kind}", "", "", "", code=200, dry_run=False)
        for kind in ("pods", "nodes")
    )
    log.add(one)
    log.add(other)
    log.close()
    text = path.read_text()
    for length in range(len(text)):
        path.write_text(text[:length])
        assert list(requests(path)) == [one, other][: text[:length].count("\n")]
