"""What a measurement hands over, and how it is shown: one table against the limits, then one section a measurement."""

from dataclasses import dataclass, field


@dataclass
class Limit:
    """A line of the table of limits."""

    what: str
    peers: str
    lockrun: str
    limit: str
    is_met: bool


@dataclass
class Section:
    """A measurement: how it was made, and what came of it."""

    title: str
    method: str
    header: list
    rows: list = field(default_factory=list)
    limits: list = field(default_factory=list)
    notes: list = field(default_factory=list)


def table(header, rows):
    """A Markdown table, with its columns aligned so that it can be read as it is."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(cells[column]) for cells in [header, *rows]) for column in range(len(header))]
    show = lambda cells: "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([show(header), rule, *map(show, rows)])


def limits_table(sections):
    limits = [limit for section in sections for limit in section.limits]
    rows = [[line.what, line.peers, line.lockrun, line.limit, "yes" if line.is_met else "**no**"] for line in limits]
    return table(["what", "peers", "lockrun", "limit", "met"], rows)


def document(machine, absent, sections):
    parts = [
        "# Measurements\n\nWritten by `make bench`, which measures everything below in one run, side by side. Times depend on the\n"
        "machine and on what else it does; ratios and counts are what can be compared.",
        "## Machine\n\n" + "\n".join(f"- {line}" for line in machine),
    ]
    if absent:
        parts.append("Left out:\n\n" + "\n".join(f"- {line}" for line in absent))
    parts.append("## Limits\n\n" + limits_table(sections))
    for section in sections:
        text = f"## {section.title}\n\n{section.method}"
        if section.rows:
            text += "\n\n" + table(section.header, section.rows)
        for note in section.notes:
            text += f"\n\n{note}"
        parts.append(text)
    return "\n\n".join(parts) + "\n"
