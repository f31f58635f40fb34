"""Alert rules: those of the RustLog document, and others for durable logs.

A rule is data: a Prometheus expression and an action. `prometheus_rules` prints them as a rule file.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    name: str
    expression: str
    for_s: int
    severity: str
    meaning: str
    action: str


RULES = (
    Rule(
        "DuramenIndexRebuilds", "increase(duramen_index_rebuilds_total[1h]) > 1", 0, "warning",
        "Indexes were rebuilt more than once an hour.",
        "Something damages them, or processes end without closing their logs: run duramen verify.",
    ),
    Rule(
        "DuramenPageFaults", "rate(duramen_page_faults_total[1m]) > 10000", 60, "warning",
        "More than 10,000 page faults a second read from the disk.",
        "The machine has too little memory for the data being read.",
    ),
    Rule(
        "DuramenSlowSync",
        "histogram_quantile(0.99, rate(duramen_sync_seconds_bucket[5m])) > 0.1", 60, "warning",
        "One sync in a hundred takes longer than 100 ms.",
        "Check the disk's latency and its other load.",
    ),
    Rule(
        "DuramenDiskFull", "duramen_disk_free_ratio < 0.10", 300, "warning",
        "Less than 10 % of the file system is free.",
        "Add space, or let retention keep some free: duramen retain --keep-free.",
    ),
    Rule(
        "DuramenPoisoned", "duramen_poisoned == 1", 0, "critical",
        "A sync failed: the writer acknowledges nothing.",
        "Close and reopen the log, which runs recovery; then check the disk.",
    ),
    Rule(
        "DuramenUnreadable", "duramen_readable == 0", 60, "critical",
        "A log cannot be opened.",
        "duramen info shows why; duramen verify checks every byte.",
    ),
    Rule(
        "DuramenDamage", "duramen_verify_ok == 0 or increase(duramen_corrupt_findings_total[1h]) > 0", 0, "critical",
        "A check found damage, or could not finish.",
        "Run duramen verify, then duramen repair, which prints a plan first.",
    ),
)  # fmt: skip


def prometheus_rules() -> str:
    """The rules as a Prometheus rule file.

    >>> print(prometheus_rules().splitlines()[3])
          - alert: DuramenIndexRebuilds
    """
    lines = ["groups:", "  - name: duramen", "    rules:"]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {rule.expression}",
            f"        for: {rule.for_s}s",
            f"        labels: {{severity: {rule.severity}}}",
            "        annotations:",
            f'          summary: "{rule.meaning}"',
            f'          description: "{rule.action}"',
        ]
    return "\n".join(lines) + "\n"
