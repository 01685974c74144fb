# SPDX-License-Identifier: Apache-2.0
"""Timeline of a pipeline step as SVG: a row a stage, a box a pass with its micro-batch, chunks in shades. No script."""

from __future__ import annotations

from html import escape

from harness.plan.degrees.pass_sequence import PassKind
from harness.plan.degrees.pipeline_timeline import Timeline, TimelineBox
from harness.plan.time.pipeline_schedule import Schedule

_LEFT, _TOP, _ROW, _GAP = 64, 64, 26, 6
_MIN_WIDTH, _MAX_WIDTH = 720.0, 4800.0
_UNIT = 20.0
"""Pixels of a forward pass, while the picture is not wider than the limit."""
_LETTER = 6.4
_HUES: dict[PassKind, tuple[int, int]] = {
    "forward": (212, 62),
    "backward": (140, 42),
    "input": (174, 42),
    "weight": (40, 70),
}
"""Hue and saturation."""
_LABELS: dict[PassKind, str] = {
    "forward": "forward",
    "backward": "backward",
    "input": "backward, inputs",
    "weight": "backward, weights",
}
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:13px}.b{text-anchor:middle;fill:#111}"
    ".w{fill:#fff}.bg{fill:#e9e9ec}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.b{fill:#111}.w{fill:#fff}.bg{fill:#33343a}}"
)


def render_timeline_svg(timeline: Timeline, title: str, chunks: int, schedule: Schedule) -> str:
    """The picture. Grey is waiting; a later chunk of a stage is darker. `chunks`: those of a stage."""
    shortest = min(box.end - box.start for box in timeline.boxes)
    width = min(max(_UNIT * timeline.seconds / shortest, _MIN_WIDTH), _MAX_WIDTH)
    scale = width / timeline.seconds
    height = _TOP + timeline.stages * (_ROW + _GAP) + 10
    parts = [f'<text class="t" x="8" y="20">{escape(title)}</text>', _render_legend(timeline, chunks)]
    for stage in range(timeline.stages):
        y = _TOP + stage * (_ROW + _GAP)
        parts.append(f'<text x="8" y="{y + 17}">stage {stage}</text>')
        parts.append(f'<rect class="bg" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW}"/>')
    parts += [_render_box(box, scale, chunks, _chunk(box, timeline.stages, schedule)) for box in timeline.boxes]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + width + 12:.0f} {height}"'
    size = f' width="{_LEFT + width + 12:.0f}" height="{height}" role="img" aria-label="{escape(title, quote=True)}"'
    return f"{head}{size}><style>{_STYLE}</style>{''.join(parts)}</svg>\n"


def _lightness(chunk: int, chunks: int) -> int:
    """76 % for the first chunk of a stage, 46 % for its last."""
    return 76 if chunks == 1 else round(76 - 30 * chunk / (chunks - 1))


def _chunk(box: TimelineBox, stages: int, schedule: Schedule) -> int:
    """The chunk of the stage; of DualPipe, 1 is that of the micro-batches which enter at the last stage."""
    if schedule == "dualpipe":
        return int(box.stage != box.work.position)
    return box.work.position // stages


def _render_legend(timeline: Timeline, chunks: int) -> str:
    kinds = [kind for kind in _HUES if any(box.work.kind == kind for box in timeline.boxes)]
    parts, x = [], 8.0
    for kind in kinds:
        hue, saturation = _HUES[kind]
        shades = range(chunks) if kind == "forward" else (0,)
        for chunk in shades:
            colour = f"hsl({hue},{saturation}%,{_lightness(chunk, chunks)}%)"
            parts.append(f'<rect x="{x:.0f}" y="32" width="14" height="14" fill="{colour}"/>')
            x += 14
        label = _LABELS[kind] + (f" (chunks 0 to {chunks - 1})" if kind == "forward" and chunks > 1 else "")
        parts.append(f'<text x="{x + 5:.0f}" y="43">{label}</text>')
        x += 24 + _LETTER * len(label)
    parts.append(f'<rect class="bg" x="{x:.0f}" y="32" width="14" height="14"/>')
    parts.append(f'<text x="{x + 19:.0f}" y="43">waiting</text>')
    return "".join(parts)


def _render_box(box: TimelineBox, scale: float, chunks: int, chunk: int) -> str:
    x, width = _LEFT + box.start * scale, (box.end - box.start) * scale
    y = _TOP + box.stage * (_ROW + _GAP)
    hue, saturation = _HUES[box.work.kind]
    lightness = _lightness(chunk, chunks)
    where = f", chunk {chunk}" if chunks > 1 else ""
    tip = escape(f"stage {box.stage}, {_LABELS[box.work.kind]} of micro-batch {box.work.micro_batch}{where}")
    colour = f"hsl({hue},{saturation}%,{lightness}%)"
    inner = max(0.4, width - 0.8)
    parts = [f'<rect x="{x + 0.4:.2f}" y="{y}" width="{inner:.2f}" height="{_ROW}" rx="1.5" fill="{colour}"/>']
    label = str(box.work.micro_batch)
    if len(label) * _LETTER <= width:
        css = "b w" if lightness < 56 else "b"
        parts.append(f'<text class="{css}" x="{x + width / 2:.1f}" y="{y + 17}">{label}</text>')
    return f"<g><title>{tip}</title>{''.join(parts)}</g>"
