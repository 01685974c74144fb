# SPDX-License-Identifier: Apache-2.0
"""NCCL's RAS service, as a small server that speaks its text protocol. Needs nothing; a second."""

from __future__ import annotations

import socketserver
import threading

import pytest

from harness.diagnosis.evidence.nccl_ras import describe_ras_report, query_ras

HEAD = "NCCL version 2.28.3 compiled with CUDA 13.0\n\nJob summary\n===========\n"
BEHIND = """Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 5 has launched up to operation 60 -- GPU 1 managed by process 4112 on node 10.0.0.2
"""
SEVERAL = """#1-0 (11a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 11 on node 10.0.0.1
  Rank 2 -- GPU 2 managed by process 13 on node 10.0.0.1
"""
NEVER = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation 1
  Rank 3 has not launched any operations -- GPU 3 managed by process 9 on node a
"""
GONE = "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n  Process 77 on node b managing GPU 5\n"


@pytest.mark.parametrize(
    ("report", "sentences"),
    [
        (BEHIND, ["rank 5 (pid 4112 on 10.0.0.2) launched up to AllReduce 60 of communicator 0-0, others 64"]),
        (SEVERAL, ["rank 0 (pid 11 on 10.0.0.1), rank 2 (pid 13 on 10.0.0.1) launched up to operation 6649"]),
        (NEVER, ["rank 3 (pid 9 on a) launched up to operation 0 of communicator 0-0, others 1"]),
        (GONE, ["gets no answer from process 77 on b (GPU 5)"]),
        (GONE + BEHIND + SEVERAL, ["process 77", "rank 5", "rank 0"]),
        (HEAD, []),
    ],
)
def test_the_ranks_that_are_behind(report, sentences):
    said = list(describe_ras_report(HEAD + report))
    assert len(said) == len(sentences)
    assert all(part in text for part, text in zip(sentences, said, strict=True)), said


@pytest.fixture
def server():
    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            assert self.rfile.readline().startswith(b"CLIENT PROTOCOL ")
            self.wfile.write(self.server.greeting)
            if self.rfile.readline().startswith(b"TIMEOUT "):
                self.wfile.write(b"OK\n")
            if self.rfile.readline() == b"VERBOSE STATUS\n":
                self.wfile.write((HEAD + BEHIND).encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as running:
        running.greeting = b"SERVER PROTOCOL 2\n"
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_the_service_is_asked(server, monkeypatch):
    monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{server.server_address[1]}")
    assert "Rank 5" in query_ras()


def test_another_service_on_the_port_is_no_answer(server):
    server.greeting = b"HTTP/1.1 400 Bad Request\n"
    with pytest.raises(OSError, match="does not speak"):
        query_ras(f"127.0.0.1:{server.server_address[1]}")


@pytest.mark.parametrize(("address", "reason"), [("127.0.0.1:1", "refused"), ("nonsense", "no HOST:PORT")])
def test_nobody_listens(address, reason):
    with pytest.raises(OSError, match=reason):
        query_ras(address)
