// Colours that colour-blind readers tell apart: cividis for magnitudes, Okabe and Ito's for series.

const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const SIGNED = ["#0072b2", "#7fb8d8", "#f7f7f7", "#eaae7f", "#d55e00"];
const SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f"];
const DASHES = ["", "6 3", "2 2", "8 3 2 3", "4 4", "1 3", "10 4", "3 6"];

const parts = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

/** The colour at a share, in [0, 1], of a list of colours. */
function between(colours, share) {
  const place = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
  const below = Math.min(Math.floor(place), colours.length - 2);
  const [from, to] = [parts(colours[below]), parts(colours[below + 1])];
  return from.map((value, i) => Math.round(value + (to[i] - value) * (place - below)));
}

/**
 * From numbers to colours. `kind`: rising (the greatest number is yellow), falling (the least is), or signed (0 is
 * white, with as much room on either side).
 */
function scaleOf(values, kind) {
  const numbers = values.filter((value) => typeof value === "number");
  let low = numbers.length ? least(numbers) : 0;
  let high = numbers.length ? greatest(numbers) : 1;
  if (kind === "signed") [low, high] = [Math.min(low, -high), Math.max(high, -low)];
  const colours = kind === "signed" ? SIGNED : kind === "falling" ? [...CIVIDIS].reverse() : CIVIDIS;
  const at = (value) => between(colours, high > low ? (value - low) / (high - low) : 0.5);
  return {
    low, high, kind, colours,
    colour: (value) => `rgb(${at(value).join(",")})`,
    ink: (value) => { const [red, green, blue] = at(value); return 0.3 * red + 0.6 * green + 0.1 * blue > 125 ? "#000" : "#fff"; },
  };
}

function legendOf({ low, high, kind, colours }) {
  return el("div", { class: "legend" }, el("span", {}, short(low)),
    el("span", { class: "ramp", style: `background:linear-gradient(90deg,${colours.join(",")})` }), el("span", {}, short(high)),
    kind === "falling" ? el("span", {}, "low is alike") : "");
}
