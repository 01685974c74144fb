"""The style sheet of the report: light and dark by the reader's setting, one column on a phone. Nothing but CSS."""

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2330; --quiet: #667085; --edge: #e3e6eb;
  --c1: #2563eb; --c2: #d9480f; --c3: #12855a; --c4: #8250df; --c5: #8a94a6; --good: #12855a; --bad: #c92a2a;
  --odd: #b7791f; }
@media (prefers-color-scheme: dark) { :root { --page: #11151c; --card: #1a202b; --ink: #e4e8ef; --quiet: #98a2b3;
  --edge: #2b3340; --c1: #6ea8fe; --c2: #ff9d66; --c3: #52c795; --c4: #b795f2; --c5: #6b7688; --good: #52c795;
  --bad: #ff8787; --odd: #e9b44c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 36px 0 12px; }
h3 { font-size: .95rem; margin: 0 0 6px; }
header p { margin: 4px 0 0; color: var(--quiet); }
.state { display: inline-block; padding: 1px 10px; border-radius: 99px; font-size: .85rem; font-weight: 600;
  border: 1px solid currentColor; vertical-align: 3px; margin-left: 8px; white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); } .odd { color: var(--odd); }
.quiet { color: var(--quiet); margin: 4px 0; }
.grid2 { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.card { margin: 0; background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px;
  min-width: 0; }
.facts { display: grid; gap: 10px; grid-template-columns: repeat(auto-fill, minmax(148px, 1fr)); margin: 18px 0 0;
  padding: 0; }
.facts div { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 10px 12px; }
.facts dt { color: var(--quiet); font-size: .8rem; } .facts dd { margin: 0; font-size: 1.15rem; font-weight: 600;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.facts small { display: block; font-weight: 400; font-size: .78rem; color: var(--quiet); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 12px; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--edge); }
svg .line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
svg .dot { fill: var(--c); stroke: var(--card); stroke-width: 1.5; }
svg .rule { stroke: var(--c); stroke-width: 1.5; stroke-dasharray: 5 4; }
.c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); } .c5 { --c: var(--c5); }
.legend { margin: 0 0 6px; color: var(--quiet); font-size: .85rem; display: flex; flex-wrap: wrap; gap: 2px 16px; }
.key::before { content: ""; display: inline-block; width: 12px; height: 3px; border-radius: 2px; background: var(--c);
  margin-right: 6px; vertical-align: middle; }
.key.dots::before { width: 9px; height: 9px; border-radius: 50%; }
.key.rule::before { height: 0; border-top: 2px dashed var(--c); background: none; border-radius: 0; }
.bar { display: flex; height: 16px; border-radius: 5px; overflow: hidden; background: var(--edge); margin: 4px 0 8px; }
.bar span { background: var(--c); }
.bars { margin: 0; } .bars dt { color: var(--quiet); font-size: .85rem; }
.bars dd { margin: 0 0 6px; display: grid; grid-template-columns: 1fr 6.5em; gap: 10px; align-items: center; }
.bars dd b { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
th { color: var(--quiet); font-weight: 500; } tr:last-child td { border-bottom: 0; }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.chosen td { font-weight: 600; } td.why { color: var(--quiet); }
code, pre { font: .85em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { margin: 8px 0 0; overflow-x: auto; } pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
section > * + *, main > .card + .card, .grid2 + .card, .card + .grid2, details.card, .spaced { margin-top: 14px; }
summary { cursor: pointer; font-weight: 600; }
ul { margin: 0; padding-left: 20px; }
@media (max-width: 560px) { main { padding: 16px 12px 48px; } .card { padding: 12px; }
  .facts { grid-template-columns: 1fr 1fr; } svg text { font-size: 14px; } }
@media print { body { background: #fff; } .card { break-inside: avoid; } }
"""
