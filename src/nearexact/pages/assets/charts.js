// Charts that are drawn when they come into view, in the colours of the page, light or dark.
//   Charts.add(element, () => ({ data, layout }))   draws now or later; Charts.redraw() draws again what has been drawn.
//   An element with data-figure="id" shows the { data, layout } in the JSON block with that id.
"use strict";
const Charts = (() => {
  const figures = new Map(); // element -> function that makes its figure
  const drawn = new Set();
  const touch = matchMedia("(pointer: coarse)").matches;

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

  function axis(overrides) {
    return {
      gridcolor: style("--grid"), linecolor: style("--line"), zerolinecolor: style("--line"), tickcolor: style("--line"),
      ticks: "outside", ticklen: 4, automargin: true, separatethousands: true, exponentformat: "power", minexponent: 5, ...overrides,
    };
  }

  // The page's own look, with what a chart wants to have differently; nested objects are merged one level deep.
  function themed(layout) {
    const axes = Object.fromEntries(
      Object.entries({ xaxis: {}, yaxis: {}, ...layout })
        .filter(([name]) => /^[xy]axis\d*$/.test(name))
        .map(([name, value]) => [name, axis(value)]),
    );
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: touch ? false : "zoom",
      margin: { l: 56, r: 12, t: 28, b: 44 }, showlegend: false, hoverlabel: { namelength: -1 },
      modebar: { bgcolor: style("--surface"), color: style("--muted"), activecolor: style("--text") },
      ...layout, ...axes,
      font: { family: style("--font"), size: 12, color: style("--text"), ...layout.font },
    };
  }

  // Plotly is in the page as text, which the browser does not run until a chart is seen or it has nothing else to do.
  function plotly() {
    if (!window.Plotly) {
      const script = document.createElement("script");
      script.textContent = document.getElementById("plotly").textContent;
      document.head.append(script);
    }
    return window.Plotly;
  }
  const later = window.requestIdleCallback ?? ((work) => setTimeout(work, 500));
  addEventListener("load", () => later(plotly));

  function draw(element) {
    const { data, layout } = figures.get(element)();
    drawn.add(element);
    return plotly().react(element, data, themed(layout), {
      responsive: true, displaylogo: false, scrollZoom: false,
      displayModeBar: touch ? false : "hover", // fingers do not hover: after a tap it would stay
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    });
  }

  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      observer.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "200px" });

  function add(element, figure) {
    figures.set(element, figure);
    if (drawn.has(element)) draw(element);
    else observer.observe(element);
  }

  const redraw = () => Promise.all([...drawn].map(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // A printed page needs all charts, also those that have not been scrolled to yet.
  addEventListener("beforeprint", () => figures.forEach((_, element) => drawn.has(element) || draw(element)));

  for (const element of document.querySelectorAll("[data-figure]")) {
    add(element, () => JSON.parse(document.getElementById(element.dataset.figure).textContent));
  }
  return { add, redraw, style, isDark };
})();
