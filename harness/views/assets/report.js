// Draws the charts of a report with uPlot (beside this file), and in a live report asks for changes. What is drawn is in
// the element `charts`, in the order of the figures.
(function () {
  "use strict";
  const DASHES = [[], [9, 5], [2, 4], [9, 4, 2, 4], [16, 5], [2, 8], [12, 4, 2, 4, 2, 4]];
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const axes = JSON.parse(document.getElementById("axes").textContent);
  const drawn = new Map();
  const view = { axis: "step", smoothing: 0, runs: null };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (series) => css(series.colour ? "--c" + series.colour : "--ink");
  const dash = (series) => DASHES[series.dash % DASHES.length];

  // four digits, a letter for thousands
  function short(v) {
    if (v == null) return "";
    const a = Math.abs(v);
    for (const [limit, by, letter] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
      if (a >= limit) return parseFloat((v / by).toPrecision(4)) + letter;
    return a !== 0 && a < 1e-3 ? v.toExponential(1) : String(parseFloat(v.toPrecision(4)));
  }
  const withUnit = (v, unit) => short(v) + (unit === "%" ? "%" : unit ? " " + unit : "");

  // steps as tokens or hours of their run, between the points that are known, and beyond them by the last slope
  function along(xs, run) {
    const known = axes[run]?.[view.axis];
    if (!known) return xs;
    const [from, to] = known;
    let i = 1;
    return xs.map((x) => {
      while (i < from.length - 1 && from[i] < x) i++;
      return to[i - 1] + ((x - from[i - 1]) * (to[i] - to[i - 1])) / (from[i] - from[i - 1]);
    });
  }

  // an exponential mean without the weight of a start at zero
  function smoothed(s) {
    if (!view.smoothing || s.kind !== "line") return s.ys;
    let mean = 0, weight = 0;
    return s.ys.map((y) => {
      mean = view.smoothing * mean + (1 - view.smoothing) * y;
      weight = view.smoothing * weight + 1 - view.smoothing;
      return mean / weight;
    });
  }

  // what is drawn of a chart now: the axis, the smoothing and the runs are the reader's
  function asShown(chart) {
    const series = chart.series.filter((s) => !view.runs || view.runs.has(s.run));
    const can = chart.x === "step" && series.every((s) => s.kind === "rule" || (axes[s.run] || {})[view.axis]);
    const moved = view.axis !== "step" && can;
    return {
      ...chart,
      x: moved ? view.axis : chart.x,
      marks: moved ? chart.marks.map((m) => ({ ...m, x: along([m.x], chart.series[0].run)[0] })) : chart.marks,
      series: series.map((s) => ({ ...s, xs: moved ? along(s.xs, s.run) : s.xs, ys: smoothed(s) })),
    };
  }

  // all series on one x; a rule has the same y everywhere
  function aligned(chart) {
    const lines = chart.series.filter((s) => s.kind !== "rule");
    const joined = uPlot.join(lines.map((s) => [s.xs, s.ys]));
    const data = [joined[0]];
    let next = 1;
    for (const s of chart.series) data.push(s.kind === "rule" ? joined[0].map(() => s.ys[0]) : joined[next++]);
    return data;
  }

  function seriesOf(chart) {
    return chart.series.map((s) => {
      const line = {
        label: s.name,
        stroke: () => colour(s),
        width: s.kind === "thin" ? 1 : s.kind === "rule" || s.xs.length > 200 ? 1.4 : 2,
        alpha: s.kind === "thin" ? 0.45 : 1,
        dash: s.kind === "rule" ? [5, 4] : dash(s),
        spanGaps: true,
        points: { show: s.xs.length === 1 && s.kind !== "rule", size: 7 },
      };
      if (s.kind === "dots") {
        line.paths = () => null;
        line.points = { show: true, size: 8, fill: () => css("--card"), stroke: () => colour(s), width: 2 };
      }
      if (s.kind === "area" && s === chart.series[0]) line.fill = () => colour(s) + "55";
      return line;
    });
  }

  // the area between one edge and the one below it
  function bandsOf(chart) {
    const bands = [];
    chart.series.forEach((s, i) => {
      if (s.kind === "area" && i > 0) bands.push({ series: [i + 1, i], fill: () => colour(s) + "55" });
    });
    return bands;
  }

  // distances of the marks on the axis of steps: there is no step 2.5
  const WHOLE = [...Array(10).keys()].flatMap((n) => [1, 2, 5].map((factor) => factor * 10 ** n));

  function axis(chart, vertical) {
    return {
      stroke: () => css("--quiet"),
      grid: { stroke: () => css("--edge"), width: 1 },
      ticks: { stroke: () => css("--edge"), width: 1, size: 4 },
      font: "12px system-ui, sans-serif",
      values: (u, splits) => splits.map((v) => (vertical && chart.unit === "%" && v != null ? short(v) + "%" : short(v))),
      size: vertical ? (u, values) => 16 + 7 * Math.max(2, ...(values || [""]).map((v) => v.length)) : 28,
      gap: 4,
      space: vertical ? 34 : 64,
      incrs: vertical || chart.x !== "step" ? undefined : WHOLE,
    };
  }

  // restarts as dashed lines, checkpoints as small triangles on the axis, names of areas where there is room for them
  function overlay(u, chart) {
    const { ctx, bbox } = u;
    const dpr = devicePixelRatio;
    ctx.save();
    for (const mark of chart.marks) {
      const x = u.valToPos(mark.x, "x", true);
      if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
      ctx.strokeStyle = ctx.fillStyle = css(mark.kind === "restart" ? "--bad" : "--quiet");
      ctx.beginPath();
      const foot = bbox.top + bbox.height;
      if (mark.kind === "restart") {
        ctx.setLineDash([6 * dpr, 4 * dpr]);
        ctx.lineWidth = 1.5 * dpr;
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, foot);
        ctx.stroke();
        ctx.setLineDash([]);
      } else {
        ctx.moveTo(x, foot - 8 * dpr);
        ctx.lineTo(x - 4 * dpr, foot);
        ctx.lineTo(x + 4 * dpr, foot);
        ctx.fill();
      }
    }
    const areas = chart.series.map((s, i) => [s, i + 1]).filter(([s]) => s.kind === "area");
    ctx.fillStyle = css("--ink");
    ctx.font = 11 * dpr + "px system-ui, sans-serif";
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (const [s, i] of areas) {
      const at = widest(u, i);
      const below = i > 1 ? u.data[i - 1][at] : 0;
      const top = u.valToPos(u.data[i][at], "y", true), bottom = u.valToPos(below, "y", true);
      if (bottom - top > 14 * dpr) ctx.fillText(s.name, u.valToPos(u.data[0][at], "x", true), (top + bottom) / 2);
    }
    ctx.restore();
  }

  // where an area is high for as long as its name is wide, away from both ends
  function widest(u, i) {
    const many = u.data[0].length, half = Math.ceil(many * 0.04);
    const heights = u.data[i].map((y, at) => y - (i > 1 ? u.data[i - 1][at] : 0));
    let best = many - 1, most = -1;
    for (let at = Math.floor(many * 0.1); at < Math.ceil(many * 0.9); at++) {
      const height = Math.min(...heights.slice(Math.max(0, at - half), at + half + 1));
      if (height > most * 1.05) [best, most] = [at, height];
    }
    return best;
  }

  // the value under the pointer, beside each name
  function tell(u, chart, keys) {
    const i = u.cursor.idx;
    chart.series.forEach((s, n) => {
      const out = keys[n];
      if (!out) return;
      let v = i == null || s.kind === "rule" ? null : u.data[n + 1][i];
      if (v != null && s.kind === "area" && n > 0 && u.data[n][i] != null) v -= u.data[n][i];
      out.textContent = v == null ? "" : withUnit(v, chart.unit);
    });
  }

  function draw(whole) {
    const place = document.getElementById(whole.id), chart = asShown(whole);
    if (!place.clientWidth) return;
    const all = [...place.parentElement.querySelectorAll(".legend output")];
    whole.series.forEach((s, i) => { all[i].parentElement.hidden = !!view.runs && !view.runs.has(s.run); });
    const keys = all.filter((key) => !key.parentElement.hidden);
    drawn.get(chart.id)?.destroy();
    drawn.delete(chart.id);
    place.classList.toggle("none", !chart.series.length);
    if (!chart.series.length) return;
    const lowest = Math.min(...chart.series.flatMap((s) => s.ys));
    const options = {
      width: place.clientWidth,
      height: 230,
      legend: { show: false },
      scales: {
        x: { time: false, range: (u, a, b) => (a === b ? [a - 0.5, b + 0.5] : [a, b]) },
        y: {
          range: (u, a, b) => {
            const from = chart.zero && lowest >= 0 ? 0 : a;
            const room = 0.06 * (b - from || Math.abs(b) || 1);
            return [from === 0 && chart.zero ? 0 : from - room, b + room];
          },
        },
      },
      series: [{ label: chart.x }, ...seriesOf(chart)],
      bands: bandsOf(chart),
      axes: [axis(chart, false), axis(chart, true)],
      cursor: { sync: { key: chart.x }, points: { size: 6 }, y: false },
      hooks: { draw: [(u) => overlay(u, chart)], setCursor: [(u) => tell(u, chart, keys)] },
    };
    drawn.set(chart.id, new uPlot(options, aligned(chart), place));
  }

  const known = new Map(charts.map((chart) => [chart.id, chart]));
  const widths = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const chart = known.get(entry.target.id), plot = drawn.get(entry.target.id);
      const width = Math.floor(entry.contentRect.width);
      if (width && (!plot || plot.width !== width)) draw(chart);
    }
  });
  for (const chart of charts) widths.observe(document.getElementById(chart.id));
  const again = () => charts.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("beforeprint", again);
  const smoothing = document.getElementById("smoothing"), axisChoice = document.getElementById("axis");
  smoothing?.addEventListener("input", () => { view.smoothing = Number(smoothing.value); again(); });
  axisChoice?.addEventListener("change", () => { view.axis = axisChoice.value; again(); });
  if (smoothing) smoothing.value = view.smoothing;  // browsers keep both over a reload
  if (axisChoice) axisChoice.value = view.axis;
  document.addEventListener("runs-chosen", (event) => { view.runs = new Set(event.detail); again(); });

  if (document.body.dataset.live) {
    const blocks = () => [...document.querySelectorAll("details")];
    try {
      const open = JSON.parse(sessionStorage.getItem("open") || "[]");
      blocks().forEach((block, i) => { if (open[i] !== undefined) block.open = open[i]; });
    } catch { /* the report has changed its form */ }
    const version = document.body.dataset.live;
    // The second word is known to the server that made this page, and in no request. Whoever has the port after it gets
    // no more requests, and nothing of his is loaded.
    const proof = version.split(" ")[1];
    const asking = setInterval(async () => {
      try {
        const answer = await fetch("version", { cache: "no-store", redirect: "error" });
        const now = await answer.text();
        if (!answer.ok || now.split(" ")[1] !== proof) throw new Error("another server");
        if (now !== version && !document.hidden) {
          sessionStorage.setItem("open", JSON.stringify(blocks().map((block) => block.open)));
          location.reload();
        }
      } catch {
        clearInterval(asking);
        document.body.classList.add("gone");
      }
    }, 2000);
  }
})();
