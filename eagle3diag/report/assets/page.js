// Draws the figures with the plotly.js that the page carries. Without it (or without JavaScript) the static drawings stay.
(() => {
  const root = document.documentElement;
  const read = (id) => { const box = document.getElementById(id); return box ? box.textContent : null; };

  const save = document.getElementById("save-json");
  save.hidden = false;
  save.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([read("result")], { type: "application/json" }));
    link.download = "eagle3diag.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  // a link to a folded section opens it; paper shows everything
  const reveal = () => { const fold = location.hash.length > 1 && document.getElementById(location.hash.slice(1))?.querySelector(":scope > details"); if (fold) fold.open = true; };
  addEventListener("hashchange", reveal);
  reveal();
  let opened = [];
  addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("section > details:not([open]), main > details:not([open]), .e3d details:not([open])")]; opened.forEach((d) => { d.open = true; }); });
  addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));

  const packed = read("plotly-packed");
  if (!packed || !("DecompressionStream" in window)) { root.dataset.plots = "static"; return; }
  const unpack = (base64) => new Response(new Blob([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))]).stream().pipeThrough(new DecompressionStream("gzip"))).text();

  const hues = JSON.parse(read("hues"));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // the same drawing in the other theme's colours: the hues are replaced in the text before it is parsed
  let text = "";
  const specs = () => JSON.parse(dark.matches ? hues.reduce((t, [light, night]) => t.replaceAll(light, night), text) : text);
  const narrow = () => innerWidth < 600;
  const themed = (layout, traces) => {
    const css = getComputedStyle(root), ink = css.getPropertyValue("--ink").trim(), soft = css.getPropertyValue("--soft").trim();
    const axis = { gridcolor: css.getPropertyValue("--grid").trim(), linecolor: soft };
    layout.font.color = ink;
    layout.hoverlabel = { bgcolor: css.getPropertyValue("--card").trim(), bordercolor: soft, font: { color: ink } };
    layout.modebar = { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink };
    Object.assign(layout.xaxis, axis);
    Object.assign(layout.yaxis, axis);
    if (narrow()) { // a phone: smaller type, room for the legend, and a finger scrolls the page instead of zooming the plot
      layout.font.size = 11;
      layout.margin.r = 10;
      layout.dragmode = false;
      if (layout.showlegend) layout.height += 18 * traces;
    }
    return layout;
  };

  let current = {};
  const config = JSON.parse(read("plot-config"));
  const drawn = new Map();
  const draw = async (figure) => {
    const spec = current[figure.id], live = figure.querySelector(".live");
    live.hidden = false;
    await Plotly.react(live, spec.data, themed(spec.layout, spec.data.length), { ...config, ...spec.config, ...(narrow() ? { displayModeBar: false } : {}) });
    figure.classList.add("is-live");
    drawn.set(figure, true);
    root.dataset.plots = `${drawn.size}/${Object.keys(current).length}`;
  };
  const start = async () => {
    const source = await unpack(packed);
    text = await unpack(read("figures-packed"));
    current = specs();
    const script = document.createElement("script");
    script.textContent = source; // allowed by its hash in the page's policy, and by nothing else
    document.head.append(script);
    if (!window.Plotly) { root.dataset.plots = "static"; return; }
    root.dataset.plots = `0/${Object.keys(current).length}`;
    const seen = new IntersectionObserver((entries) => entries.forEach((e) => { if (e.isIntersecting) { seen.unobserve(e.target); draw(e.target); } }), { rootMargin: "400px" });
    document.querySelectorAll("figure[id]").forEach((f) => { if (f.id in current) seen.observe(f); });
    dark.addEventListener("change", () => { current = specs(); [...drawn.keys()].forEach(draw); });
  };
  requestAnimationFrame(() => setTimeout(start, 0)); // after the first paint: the text is there at once
})();
