"""Computes ratios from pairs of figures, and a verdict from ratios; writes tables and JSON."""

import json
import statistics
from dataclasses import dataclass, field


@dataclass
class Line:
    """One figure of one piece of work: ours and the peer's, measured in turn."""

    work: str
    figure: str
    unit: str
    peer: str
    # The bound on ours / peer: at least (">=") or at most ("<="); without one, the ratio is only shown.
    sign: str = ""
    bound: float | None = None
    ours: list = field(default_factory=list)
    theirs: list = field(default_factory=list)
    note: str = ""

    def add(self, ours, theirs):
        """Adds one pair."""
        self.ours.append(ours)
        self.theirs.append(theirs)

    @property
    def ratios(self):
        """The ratio of each pair."""
        return [a / b for a, b in zip(self.ours, self.theirs) if b]

    @property
    def ratio(self):
        """The median of the ratios."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def reached(self):
        """Whether the bound is kept; None if there is none."""
        if self.bound is None or self.ratio is None:
            return None
        return self.ratio >= self.bound if self.sign == ">=" else self.ratio <= self.bound

    def cells(self):
        """The cells of the table."""
        show = lambda values: (
            f"{statistics.median(values):,.{0 if statistics.median(values) >= 100 else 2}f}" if values else "-"
        )
        spread = f"{min(self.ratios):.2f}..{max(self.ratios):.2f}" if self.ratios else "-"
        verdict = {None: "", True: "reached", False: "MISSED"}[self.reached]
        bound = f"{self.sign} {self.bound:g}" if self.bound is not None else "told"
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else "-"
        return [
            self.work,
            f"{self.figure}, {self.unit}",
            show(self.ours),
            show(self.theirs),
            self.peer,
            ratio,
            spread,
            bound,
            verdict,
        ]

    def as_json(self):
        """The values for the JSON file."""
        kept = (
            "work",
            "figure",
            "unit",
            "peer",
            "sign",
            "bound",
            "ours",
            "theirs",
            "ratios",
            "ratio",
            "reached",
            "note",
        )
        return {key: getattr(self, key) for key in kept}


HEAD = ["work", "figure", "ours", "peer's", "peer", "ratio", "of pairs", "to reach", ""]


def table(lines):
    """The table in Markdown, with aligned columns."""
    notes = [f"{line.work}: {line.note}" for line in lines if line.note]
    return "\n".join([aligned([HEAD, *(line.cells() for line in lines)]), *dict.fromkeys(notes)])


def aligned(rows):
    """Rows of cells as a Markdown table; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    show = lambda row: "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([show(rows[0]), rule, *map(show, rows[1:])])


def write(path, machine, remarks, options, lines):
    """Writes all results as JSON."""
    path.parent.mkdir(exist_ok=True)
    everything = {
        "machine": machine,
        "remarks": remarks,
        "options": options,
        "lines": [line.as_json() for line in lines],
    }
    path.write_text(json.dumps(everything, indent=1) + "\n")
