// The report's charts: all seeds thin, their median thick, for the methods and the axis chosen in the controls.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const controls = document.getElementById("controls");
  const form = () => new FormData(controls);
  const shown = () => new Set(form().getAll("method"));
  const hidden = (name) => [...controls.elements].some((box) => box.name === "method" && box.value === name && !box.checked);
  const colour = (name) => data.methods[name]?.[Charts.isDark() ? "dark" : "light"] ?? Charts.style("--muted");
  const label = (name) => escape(data.methods[name]?.label ?? name);
  // Plotly reads some tags in names as markup.
  function escape(text) { return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); }

  function usable(costs, values) {
    return costs.map((cost, i) => [cost, values[i]]).filter(([cost, value]) => cost !== null && cost > 0 && value !== null);
  }

  // Costs and values of a run, smoothed if that is chosen and the method is one that is smoothed.
  function curve(run, column, cost, smoothed) {
    if (!run[column] || !run[cost]) return []; // not recorded
    const values = smoothed && run.held ? run.held.map((i) => run[column][i]) : run[column];
    return usable(run[cost], values);
  }

  // The median of the last values of the runs, from where at least half have one; see median_curve in analysis/curves.py.
  function median(curves) {
    const grid = [...new Set(curves.flat().map(([cost]) => cost))].sort((a, b) => a - b);
    const next = curves.map(() => 0);
    const points = [];
    for (const cost of grid) {
      const values = [];
      curves.forEach((points, k) => {
        while (next[k] < points.length && points[next[k]][0] <= cost) next[k] += 1;
        if (next[k] > 0) values.push(points[next[k] - 1][1]);
      });
      if (2 * values.length < curves.length) continue;
      values.sort((a, b) => a - b);
      const middle = values.length >> 1;
      points.push([cost, values.length % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2]);
    }
    return points;
  }

  const columns = (points) => ({ x: points.map((p) => p[0]), y: points.map((p) => p[1]) });
  const joined = (curves) => columns(curves.flatMap((points) => [...points, [null, null]]));

  function seeds(curves, name, markers) {
    return {
      ...joined(curves), type: "scatter", mode: markers ? "markers" : "lines", hoverinfo: markers ? "x+y+name" : "skip",
      name: label(name), opacity: markers ? 0.7 : 0.4, line: { color: colour(name), width: 1 }, marker: { color: colour(name), size: 4 },
    };
  }

  function middle(points, name, overrides = {}) {
    return {
      ...columns(points), type: "scatter", mode: points.length > 1 ? "lines" : "markers", name: label(name),
      line: { color: colour(name), width: 2.5, dash: data.methods[name].dash }, marker: { color: colour(name), size: 7 },
      hovertemplate: "%{y:.4~g} at %{x:.3~g}", ...overrides,
    };
  }

  function metricTraces(dataset, column, cost, smoothed) {
    const span = dataset.spans[cost] ?? [1, 1];
    const traces = [];
    for (const name of Object.keys(data.methods).filter((name) => shown().has(name))) {
      const runs = dataset.runs.filter((run) => run.method === name);
      const curves = runs.map((run) => curve(run, column, cost, smoothed)).filter((points) => points.length);
      if (!curves.length) continue;
      if (dataset.levels.includes(name)) {
        const level = median(curves.map((points) => [[1, points[points.length - 1][1]]]))[0][1];
        traces.push(middle([[span[0], level], [span[1], level]], name, { hovertemplate: "%{y:.4~g}" }));
      } else if (cost === "predict_seconds") {
        traces.push(seeds(curves, name, true));
      } else {
        traces.push(seeds(curves, name, false), middle(median(curves), name));
      }
      const uppers = runs.filter((run) => run.upper).map((run) => usable(run.upper[cost], run.upper.value));
      if (column === "negative_lml" && cost !== "predict_seconds" && uppers.length) {
        traces.push(seeds(uppers, name, false));
        traces.push(middle(median(uppers), name, { name: `${label(name)}, nUB`, line: { color: colour(name), width: 1.5, dash: "dot" } }));
      }
    }
    for (const [name, late] of Object.entries(dataset.late)) {
      const points = shown().has(name) ? usable(late[cost], late[column]) : [];
      if (!points.length) continue;
      traces.push({
        ...columns(points), type: "scatter", mode: "markers", name: `${label(name)}, beyond the budget`,
        hovertemplate: "%{y:.4~g} at %{x:.3~g}", marker: { color: colour(name), size: 5, symbol: "diamond-open" },
      });
    }
    if (cost === "elapsed" && form().has("published")) {
      for (const [name, [x, y]] of Object.entries(dataset.published[column] ?? {})) {
        if (hidden(name)) continue;
        traces.push({
          x, y, type: "scatter", mode: "markers", name: `${label(name)}, published`, hovertemplate: "%{y:.4~g} at %{x:.3~g}",
          marker: { color: colour(name), size: 7, symbol: "circle-open", line: { width: 1.5 } },
        });
      }
    }
    return traces;
  }

  function frontierTraces(dataset, loss, cost) {
    const frontiers = Object.entries(dataset.frontiers[`${loss} ${cost}`]).filter(([name]) => shown().has(name));
    const all = frontiers.flatMap(([, [x, y]]) => x.map((cost, i) => [cost, y[i]])).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let lowest = Infinity;
    const best = all.filter(([, value]) => value < lowest && ((lowest = value), true));
    const steps = { shape: "hv" };
    const overall = {
      ...columns(best), type: "scatter", mode: "lines", hoverinfo: "skip", name: "no method is better",
      line: { ...steps, color: Charts.style("--line"), width: 9 },
    };
    return [overall, ...frontiers.filter(([, [x]]) => x.length).map(([name, [x, y]]) => ({
      x, y, type: "scatter", mode: "lines+markers", name: label(name), hovertemplate: "%{y:.4~g} at %{x:.3~g}",
      line: { ...steps, color: colour(name), width: 2, dash: data.methods[name].dash }, marker: { color: colour(name), size: 5 },
    }))];
  }

  function padded([low, high], log) {
    if (log) {
      const [a, b] = [Math.log10(low), Math.log10(high)];
      return [a - 0.04 * Math.max(b - a, 0.3), b + 0.04 * Math.max(b - a, 0.3)];
    }
    return [Math.min(0, low), high * 1.03];
  }

  // Powers of ten, with 2 and 5 in between where there would be too few.
  function ticks(span) {
    if (!span || span[1] / span[0] > 50) return { dtick: 1 };
    const low = Math.floor(Math.log10(span[0]));
    const powers = Array.from({ length: 4 }, (_, k) => 10 ** (low + k));
    const tickvals = powers.flatMap((power) => [1, 2, 5].map((digit) => digit * power));
    return { tickvals, ticktext: tickvals.map((value) => (value < 1e5 ? String(Number(value.toPrecision(3))) : value.toExponential(0).replace("e+", "e"))) };
  }

  function figure(element) {
    const dataset = data.datasets[Number(element.dataset.dataset)];
    const cost = form().get("cost");
    const log = form().get("scale") === "log";
    const smoothed = form().get("curves") === "smoothed";
    const choice = element.closest("figure").querySelector("select")?.value;
    const metric = element.dataset.metric;
    let traces;
    let limits;
    const shapes = [];
    if (metric === "frontier") {
      traces = frontierTraces(dataset, choice, cost);
      limits = dataset.limits[choice];
    } else if (metric === "coverage") {
      traces = metricTraces(dataset, `coverage_${choice}`, cost, smoothed);
      const aim = Number(choice) / 100;
      limits = dataset.limits[`coverage_${choice}`];
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: aim, y1: aim, layer: "below", line: { color: Charts.style("--line"), width: 5 } });
    } else {
      traces = metricTraces(dataset, metric, cost, smoothed);
      limits = dataset.limits[metric];
    }
    const span = metric === "frontier" ? null : dataset.spans[cost];
    const empty = traces.every((trace) => trace.x.every((value) => value === null));
    return {
      data: traces,
      layout: {
        xaxis: {
          type: log ? "log" : "linear", title: { text: data.costs[cost], standoff: 8 }, exponentformat: "power",
          ...(span ? { range: padded(span, log) } : { autorange: true }), ...(log ? ticks(span) : {}),
        },
        yaxis: limits ? { range: [...limits] } : {},
        shapes,
        annotations: empty ? [{ text: "nothing recorded", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { color: Charts.style("--muted") } }] : [],
        hovermode: "closest",
        margin: { l: 52, r: 10, t: 10, b: 44 },
      },
    };
  }

  for (const element of document.querySelectorAll(".chart[data-metric]")) {
    Charts.add(element, () => figure(element));
    element.closest("figure").querySelector("select")?.addEventListener("change", () => Charts.add(element, () => figure(element)));
  }
  controls.addEventListener("change", Charts.redraw);
  controls.addEventListener("submit", (event) => event.preventDefault());

  const files = JSON.parse(document.getElementById("files-data").textContent);
  for (const link of document.querySelectorAll("a[data-file]")) {
    const name = link.dataset.file;
    const type = name.endsWith(".csv") ? "text/csv" : "text/plain";
    link.href = URL.createObjectURL(new Blob([files[name]], { type: `${type};charset=utf-8` }));
  }
})();
