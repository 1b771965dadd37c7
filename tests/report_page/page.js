// What tests ask of a page. Each function returns plain values; a list of faults is empty when there are none.

/** The text of every table by its caption, row by row. */
function tables() {
  const cells = (row) => [...row.cells].map((cell) => cell.textContent.trim());
  return Object.fromEntries([...document.querySelectorAll("table")].map((table) =>
    [table.caption.textContent.trim(), [...table.rows].map(cells)]));
}

/** What is missing for somebody who does not see the page, or not all of it. */
function untold() {
  const faults = [];
  const demand = (holds, fault) => holds || faults.push(fault);
  demand(document.documentElement.lang, "no language");
  demand(document.title.trim(), "no title");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  demand(ids.length === new Set(ids).size, "an id twice");
  const levels = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map((heading) => +heading.tagName[1]);
  demand(levels.filter((level) => level === 1).length === 1 && levels[0] === 1, "not one h1, at the start");
  levels.slice(1).forEach((level, index) => demand(level <= levels[index] + 1, `h${level} after h${levels[index]}`));
  for (const image of document.images) demand(image.alt.trim(), `no alt: ${image.outerHTML.slice(0, 60)}`);
  for (const svg of document.querySelectorAll("svg")) {
    demand(svg.getAttribute("role") === "img" && svg.getAttribute("aria-label"), "an svg without role or label");
  }
  for (const table of document.querySelectorAll("table")) {
    const name = table.caption?.textContent.trim();
    demand(name, `no caption: ${table.textContent.slice(0, 60)}`);
    const headers = [...table.querySelectorAll("th")];
    demand(headers.length && headers.every((header) => header.scope), `headers without scope: ${name}`);
  }
  const ownLinks = [...document.links].filter((link) => link.getAttribute("href").startsWith("#"));
  for (const link of ownLinks) demand(document.querySelector(link.hash), `leads nowhere: ${link.hash}`);
  return faults;
}

/** Elements that stick out of the window, of their card or of their drawing, and texts of a drawing that overlap. */
function misplaced() {
  unfold();
  const faults = [];
  const name = (element) => `${element.tagName} ${element.className.baseVal ?? element.className}: ${element.textContent.trim().slice(0, 40)}`;
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) faults.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.getClientRects().length) continue;
    const scroller = element.parentElement.closest(".scroll");
    if (scroller && getComputedStyle(scroller).overflowX === "auto") continue;
    const frame = (element.ownerSVGElement ?? element.parentElement.closest(".card"))?.getBoundingClientRect();
    const { left, right } = element.getBoundingClientRect();
    if (right > (frame?.right ?? width) + 1 || left < (frame?.left ?? 0) - 1) faults.push(name(element));
  }
  for (const svg of document.querySelectorAll("svg")) {
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => text.getBoundingClientRect());
    boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
      const overlap = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      if (overlap > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) faults.push(`${name(texts[j])} | ${name(texts[i])}`);
    }));
  }
  return faults;
}

/** Words of at most `limit` letters that go on in the next line; names of files may break at their punctuation. */
function broken(limit) {
  unfold();
  const faults = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.parentElement.checkVisibility() || node.parentElement.closest("code") || node.data.includes("://")) continue;
    for (const word of node.data.matchAll(/\p{L}+/gu)) {
      if (word[0].length > limit) continue;
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) faults.push(word[0]);
    }
  }
  return faults;
}

/** Texts whose contrast with what is painted behind them is below `limit` (WCAG 2), or that are covered. */
function faint(limit) {
  unfold();
  const faults = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility()) continue;
    element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getClientRects()[0];
    const stack = document.elementsFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
    const place = stack.indexOf(element);
    const behind = stack.slice(place).reverse().reduce((below, one) => over(painted(one), below), [255, 255, 255]);
    const contrast = ratio(over(ink(element), behind), behind);
    if (place < 0) faults.push(`covered: ${node.data.trim()}`);
    else if (contrast < limit) faults.push(`${contrast.toFixed(2)}: ${node.data.trim()}`);
  }
  return faults;
}

function unfold() {
  for (const details of document.querySelectorAll("details")) details.open = true;
}

function colour(text) {
  const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
  return [red, green, blue, alpha];
}

/** The colour of an element's text, its own and its ancestors' opacity included. */
function ink(element) {
  const style = getComputedStyle(element);
  const [red, green, blue, alpha] = colour(element instanceof SVGElement ? style.fill : style.color);
  let opacity = alpha;
  for (let one = element; one; one = one.parentElement) opacity *= getComputedStyle(one).opacity;
  return [red, green, blue, opacity];
}

/** The colour that an element paints behind texts in front of it. */
function painted(element) {
  const style = getComputedStyle(element);
  if (!(element instanceof SVGGeometryElement)) return colour(style.backgroundColor);
  const [red, green, blue, alpha] = colour(style.fill);
  return [red, green, blue, alpha * style.fillOpacity * style.opacity];
}

function over([red, green, blue, alpha], below) {
  return [red, green, blue].map((channel, index) => alpha * channel + (1 - alpha) * below[index]);
}

function ratio(first, second) {
  const linear = (channel) => (channel <= 10.31475 ? channel / 3294.6 : ((channel / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const [dark, light] = [luminance(first), luminance(second)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}
