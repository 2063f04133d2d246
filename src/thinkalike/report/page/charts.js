// Lines by layer with their intervals, and bars with intervals in the cells of a table.

// The axes of a chart, and about how many layers and values are written at them. A chart is as wide as its place on the
// page, so a small place needs small axes, or the letters shrink with them.
const LARGE = { left: 44, width: 250, height: 130, layers: 12, values: 5 };
const SMALL = { left: 34, width: 136, height: 84, layers: 6, values: 3 };

/**
 * Draw lines over layers, or over what else `along` names. `series`: {name, points: [[layer, value, low, high]]}; `label`
 * says what the drawing is. `range` sets the vertical axis, for charts that stand side by side.
 */
function lines(label, unit, series, { range, legend = true, along = "layer", size = LARGE } = {}) {
  const refused = tooMany(series.reduce((sum, each) => sum + each.points.length, MARKS_OF_A_CHART), label);
  if (refused) return [refused];
  const layers = [...new Set(series.flatMap((each) => each.points.map(([layer]) => layer)))].sort((p, q) => p - q);
  const placeOfLayer = new Map(layers.map((layer, i) => [layer, i]));
  const [low, high] = range ?? spanOf(series);
  const { left, width, height } = size;
  const top = 22;
  const x = (layer) => left + (layers.length > 1 ? (placeOfLayer.get(layer) / (layers.length - 1)) * width : width / 2);
  const y = (value) => top + height - ((value - low) / (high - low || 1)) * height;
  const drawing = svg("svg", { viewBox: `0 0 ${left + width + 12} ${top + height + 34}`, role: "img", "aria-label": told(label, series, along), style: "max-width:440px" });
  for (const tick of ticksOf(low, high, size.values)) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: left + width, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "axis", x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  const every = Math.ceil(layers.length / size.layers);
  layers.forEach((layer, i) => {
    if (i % every === 0) drawing.append(svg("text", { class: "axis", x: x(layer), y: top + height + 14, "text-anchor": "middle" }, layerName(layer)));
  });
  drawing.append(svg("text", { class: "axis", x: 0, y: 11 }, unit),
    svg("text", { class: "axis", x: left + width / 2, y: top + height + 29, "text-anchor": "middle" }, along));
  series.forEach((each, i) => withChildren(drawing, lineOf(each, i, x, y, along)));
  return [drawing, legend ? legendOfSeries(series) : null];
}

function lineOf(each, number, x, y, along) {
  const colour = SERIES[number % SERIES.length];
  const points = each.points.filter(([, value]) => typeof value === "number");
  const ended = points.filter(([, , low, high]) => typeof low === "number" && typeof high === "number");
  const band = [...ended.map(([layer, , , high]) => [x(layer), y(high)]), ...ended.map(([layer, , low]) => [x(layer), y(low)]).reverse()];
  return [
    ended.length > 1 ? svg("polygon", { points: band.join(" "), fill: colour, opacity: 0.18 }) : svg("g"),
    svg("polyline", { points: points.map(([layer, value]) => [x(layer), y(value)]).join(" "), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[number % DASHES.length] }),
    ...points.map(([layer, value, low, high]) => svg("g", {},
      typeof low === "number" && typeof high === "number" ? svg("line", { x1: x(layer), x2: x(layer), y1: y(low), y2: y(high), stroke: colour, "stroke-width": 1.3 }) : null,
      svg("circle", { cx: x(layer), cy: y(value), r: 3.2, fill: colour }),
      svg("title", {}, `${each.name}, ${along} ${layerName(layer)}: ${short(value)} ${interval(low, high)}`))),
  ];
}

function legendOfSeries(series) {
  return el("div", { class: "series" }, series.map((each, i) => el("span", {},
    svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: SERIES[i % SERIES.length], "stroke-width": 2.5, "stroke-dasharray": DASHES[i % DASHES.length] })),
    ` ${each.name}`)));
}

const endsOf = (series) => series.flatMap((each) => each.points.flatMap((point) => point.slice(1))).filter((value) => typeof value === "number");

/** From the least to the greatest end of all intervals, with 0, for bars. */
function rangeOf(series) {
  const ends = endsOf(series);
  return [Math.min(0, least(ends)), Math.max(0, greatest(ends))];
}

/** The same without 0 and with a margin, for lines. */
function spanOf(series) {
  const values = endsOf(series);
  if (!values.length) return [0, 1];
  const [low, high] = [least(values), greatest(values)];
  const margin = 0.05 * (high - low) || 0.05 * Math.abs(high) || 0.05;
  return [low - margin, high + margin];
}

function ticksOf(low, high, most) {
  const step = 10 ** Math.floor(Math.log10((high - low || 1) / 2));
  const wide = [1, 2, 5, 10].map((times) => times * step).find((size) => (high - low || 1) / size <= most);
  const ticks = [];
  for (let tick = Math.ceil(low / wide - 1e-9); tick * wide <= high + wide * 1e-6; tick++) ticks.push(Number((tick * wide).toPrecision(6)));
  return ticks;
}

const told = (label, series, along) =>
  `${label}. ${series.map((each) => `${each.name}: ${each.points.map(([layer, value]) => `${along} ${layerName(layer)} ${short(value)}`).join(", ")}`).join(". ")}`;

/** A bar from 0 with its interval, between the ends of a range that includes 0. */
function bar(value, low, high, [least, most], number) {
  const x = (of) => (100 * (of - least)) / (most - least || 1);
  const drawing = svg("svg", { viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true", style: "height:.8rem;min-width:60px" });
  if (typeof value !== "number") return drawing;
  drawing.append(svg("rect", { x: Math.min(x(0), x(value)), width: Math.abs(x(value) - x(0)), y: 2, height: 8, fill: SERIES[number] }));
  if (typeof low === "number") drawing.append(svg("line", { x1: x(low), x2: x(high), y1: 6, y2: 6, stroke: "currentColor", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" }));
  return drawing;
}
