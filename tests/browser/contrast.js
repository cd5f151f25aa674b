// Text that stands out too little from what lies behind it, by WCAG 2.2: 4.5 to 1, and 3 to 1 for large type.
// Opacity counts; what is not shown does not.
(() => {
  const parse = (colour) => {
    const values = colour.match(/[\d.]+/g).map(Number);
    return values.length < 4 ? [...values, 1] : values;
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ancestors = (element) => {
    const found = [];
    for (let e = element; e instanceof Element; e = e.parentElement) found.unshift(e);
    return found;
  };
  const page = parse(getComputedStyle(document.body).backgroundColor);
  const behind = (element) => ancestors(element).map((e) => parse(getComputedStyle(e).backgroundColor)).reduce((under, top) => over(top, under), page);
  const opacity = (element) => ancestors(element).reduce((all, e) => all * +getComputedStyle(e).opacity, 1);

  // the last shape of a drawing under the middle of one of its texts, such as the cell of a heat map
  const shape = (text) => {
    const box = text.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    const shapes = [...text.closest("svg").querySelectorAll("rect")].filter((r) => text.compareDocumentPosition(r) & Node.DOCUMENT_POSITION_PRECEDING);
    const inside = (r) => { const b = r.getBoundingClientRect(); return b.left <= x && x <= b.right && b.top <= y && y <= b.bottom; };
    return shapes.filter((r) => getComputedStyle(r).fill !== "none" && inside(r)).pop();
  };

  const poor = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("script,style,.hidden,.skip,title") || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), drawing = element.closest("svg");
    if (drawing && style.fill === "none") continue;
    const ink = parse(drawing ? style.fill : style.color);
    ink[3] *= opacity(element) * (drawing ? +style.fillOpacity : 1);
    let under = behind(drawing ? drawing.parentElement : element);
    const cell = drawing && shape(element);
    if (cell) {
      const fill = parse(getComputedStyle(cell).fill);
      fill[3] *= +getComputedStyle(cell).fillOpacity;
      under = over(fill, under);
    }
    const [more, less] = [light(over(ink, under)), light(under)].sort((a, b) => b - a);
    const ratio = (more + 0.05) / (less + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5) - 0.01) {
      poor.set(`${element.tagName}.${element.className?.baseVal ?? element.className}`, `${ratio.toFixed(2)} ${node.data.trim().slice(0, 40)}`);
    }
  }
  return [...poor].map((pair) => pair.join(": "));
})()
