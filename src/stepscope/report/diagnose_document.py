"""The JSON document of ``diagnose --json`` (schema stepscope.diagnose/1) and the numbers that ``--fail-if`` knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepscope.diagnose.engine import page_of
from stepscope.diagnose.rule import Rule
from stepscope.records.codec import headed, plain
from stepscope.records.finding import Diagnosis, JobVerdict
from stepscope.results.evidence import Evidence

METRICS = (
    "problem_count",
    "warning_count",
    "finding_count",
    "largest_stake_fraction",
    "lowest_speedup",
    "lowest_efficiency",
)


def metrics(evidence: Evidence, diagnosis: Diagnosis) -> dict[str, float | None]:
    """Counts of findings, the largest stake (share of the step), and the worst scaling; None where there is none."""
    severities = [finding.severity for finding in diagnosis.findings]
    stakes = [f.stake_fraction for f in diagnosis.findings if f.stake_fraction is not None]
    scaled = [row for row in evidence.scaling if not row.is_baseline]
    return {
        "problem_count": severities.count("problem"),
        "warning_count": severities.count("warning"),
        "finding_count": len(severities),
        "largest_stake_fraction": max(stakes, default=None),
        "lowest_speedup": min((row.speedup for row in scaled), default=None),
        "lowest_efficiency": min((row.efficiency for row in scaled), default=None),
    }


def document(evidence: Evidence, diagnosis: Diagnosis, verdict: JobVerdict | None = None) -> dict[str, Any]:
    """Plain dicts and lists; unknown is null."""
    return {
        **headed("diagnose/1"),
        "sources": [
            {"path": str(source.path), "kind": source.kind, "format": source.format} for source in evidence.sources
        ],
        "files_found": plain(evidence.files_found),
        "metrics": metrics(evidence, diagnosis),
        "verdict": plain(verdict),
        "findings": plain(diagnosis.findings),
        "skipped": plain(diagnosis.skipped),
        "quiet": plain(diagnosis.quiet),
        "scaling": plain(evidence.scaling),
        "notes": list(evidence.said),
    }


def rules_document(rules: Iterable[Rule]) -> dict[str, Any]:
    """Rules as `diagnose --rules list --json` and `--explain RULE --json` print them."""
    return {
        **headed("rules/1"),
        "rules": [
            {
                "name": rule.name,
                "symptom": rule.symptom,
                "needs": list(rule.needs),
                "any_of": list(rule.any_of),
                "protocol": rule.protocol,
                "good_news": rule.good_news,
                "thresholds": {name: plain(each) for name, each in rule.thresholds.items()},
                "page": page_of(rule),
            }
            for rule in rules
        ],
    }
