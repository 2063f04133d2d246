// Colours that colour-blind readers tell apart: cividis for magnitudes, Okabe and Ito's for series.

const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f"];
const DASHES = ["", "6 3", "2 2", "8 3 2 3", "4 4", "1 3", "10 4", "3 6"];

const parts = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

/** The colour of a share in [0, 1]. */
function ramp(share) {
  const place = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const below = Math.min(Math.floor(place), CIVIDIS.length - 2);
  const [from, to] = [parts(CIVIDIS[below]), parts(CIVIDIS[below + 1])];
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * (place - below))).join(",")})`;
}

/** Black or white, whichever can be read on the colour of a share. */
const onRamp = (share) => (share > 0.5 ? "#000" : "#fff");

/** From numbers to shares: the least is 0 and the greatest 1, or the other way round where low means alike. */
function scaleOf(values, reversed) {
  const numbers = values.filter((value) => typeof value === "number");
  const low = numbers.length ? numbers.reduce((a, b) => Math.min(a, b)) : 0;
  const high = numbers.length ? numbers.reduce((a, b) => Math.max(a, b)) : 1;
  const share = (value) => (high > low ? (value - low) / (high - low) : 0.5);
  return { low, high, reversed, share: (value) => (reversed ? 1 - share(value) : share(value)) };
}

function legendOf(scale) {
  const stops = CIVIDIS.map((_, i) => ramp(scale.reversed ? 1 - i / 9 : i / 9)).join(",");
  const alike = scale.reversed ? "low is alike" : "";
  return el("div", { class: "legend" }, short(scale.low),
    el("span", { class: "ramp", style: `background:linear-gradient(90deg,${stops})` }), short(scale.high), alike);
}
