// Matrices that share one cursor: what is pointed at in one is read in all of them.

/** A cursor over two axes. Panels join it; it moves by mouse, touch and arrow keys, and a click or Enter chooses. */
function cursorOver(rows, columns, choose, said) {
  const panels = [];
  const cursor = { rows, columns, at: null, chosen: null, panels, move, pick };
  function move(row, column) {
    cursor.at = [row, column];
    for (const panel of panels) panel.read(row, column);
  }
  function pick(row, column) {
    cursor.chosen = [row, column];
    for (const panel of panels) panel.mark(row, column);
    move(row, column);
    choose(rows[row], columns[column]);
  }
  cursor.say = () => said(panels.map((panel) => panel.text()).join("; "));
  return cursor;
}

const STEPS = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * Draw a matrix, its first row at the bottom.
 * `options`: label (what it is), rowName and columnName (what the axes are), value(row, column) -> number or null,
 * ends(row, column) -> [low, high], told(row, column) -> text, up (whether the first row is at the bottom), colours: a scale.
 */
function matrix(cursor, options) {
  const { rows, columns } = cursor;
  const refused = tooMany(rows.length * (columns.length + 2), options.label); // a row has a label
  if (refused) {
    cursor.panels.push({ mark() {}, read() {}, text: () => "" });
    return [refused];
  }
  const labelled = rows.some((row) => typeof row === "string");
  const cell = Math.max(6, Math.min(34, 200 / Math.max(columns.length, labelled ? 1 : rows.length)));
  const left = labelled ? 8 + 6.2 * greatest(rows.map((row) => String(row).length)) : 34;
  const tall = labelled ? Math.max(cell, 16) : cell;
  const [width, height] = [columns.length * cell, rows.length * tall];
  const y = (row) => (options.up ? rows.length - 1 - row : row) * tall;
  const numbers = cell >= 24;
  const drawing = svg("svg", {
    viewBox: `0 0 ${left + Math.max(width, 130) + 4} ${height + 34}`, role: "grid", "aria-label": options.label,
    "aria-rowcount": rows.length, "aria-colcount": columns.length,
  });
  // Dark blue is hardly seen on a dark blank: beside blank cells, the others have a frame.
  const hasBlanks = rows.some((row) => columns.some((column) => options.value(row, column) === null));
  const computed = hasBlanks ? "cell framed" : "cell";
  const cells = rows.map((row, i) => {
    const group = svg("g", { role: "row" });
    drawing.append(group);
    return columns.map((column, j) => {
      const value = options.value(row, column);
      const [low, high] = options.ends(row, column);
      const rect = svg("rect", {
        x: left + j * cell, y: y(i), width: cell, height: tall, role: "gridcell", tabindex: -1,
        class: value === null ? "cell blank" : computed, fill: value === null ? null : options.colours.colour(value),
        "aria-label": `${options.rowName} ${layerName(row)}, ${options.columnName} ${layerName(column)}: ${short(value)} ${interval(low, high)}`,
        onpointerenter: () => cursor.move(i, j),
        onfocus: () => { cursor.move(i, j); cursor.say(); },
        onclick: () => cursor.pick(i, j),
        onkeydown: (event) => walk(event, i, j),
      });
      group.append(rect);
      if (numbers && value !== null) {
        const text = withMinus(Math.abs(value) < 10 ? value.toFixed(2).replace(/^(-?)0\./, "$1.") : value.toPrecision(2));
        group.append(svg("text", {
          x: left + (j + 0.5) * cell, y: y(i) + tall / 2 + 4, "text-anchor": "middle", "pointer-events": "none",
          "aria-hidden": "true", style: `fill:${options.colours.ink(value)};font-size:${Math.min(11, cell / 2.6)}px`,
        }, text));
      }
      return rect;
    });
  });
  cells[0][0].setAttribute("tabindex", 0);

  function walk(event, i, j) {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); cursor.pick(i, j); return; }
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const row = Math.min(Math.max(i + (options.up ? step[0] : -step[0]), 0), rows.length - 1);
    const column = Math.min(Math.max(j + step[1], 0), columns.length - 1);
    cells[i][j].setAttribute("tabindex", -1);
    cells[row][column].setAttribute("tabindex", 0);
    cells[row][column].focus();
  }

  drawAxes(drawing, cursor, options, { cell, tall, left, height, y });
  const frames = ["chosen", "cursor halo", "cursor"].map((name) => {
    const frame = svg("rect", { class: name, width: cell, height: tall, visibility: "hidden" });
    drawing.append(frame);
    return frame;
  });
  const put = (frame, row, column) => {
    frame.setAttribute("x", left + column * cell);
    frame.setAttribute("y", y(row));
    frame.setAttribute("visibility", "visible");
  };
  const readout = el("p", { class: "readout" }, options.hint ?? "");
  const panel = {
    mark: (row, column) => put(frames[0], row, column),
    read(row, column) {
      put(frames[1], row, column);
      put(frames[2], row, column);
      const [low, high] = options.ends(rows[row], columns[column]);
      readout.replaceChildren(el("strong", {}, short(options.value(rows[row], columns[column]))), ` ${interval(low, high)} `,
        el("span", { class: "dim" }, options.told(rows[row], columns[column])));
    },
    text: () => `${options.title} ${readout.textContent}`,
  };
  cursor.panels.push(panel);
  if (cursor.chosen) { panel.mark(...cursor.chosen); panel.read(...cursor.chosen); }
  return [drawing, legendOf(options.colours), readout];
}

function drawAxes(drawing, { rows, columns }, options, { cell, tall, left, height, y }) {
  const every = Math.max(1, Math.ceil(22 / cell));
  const text = (x, at, anchor, words, more = {}) =>
    drawing.append(svg("text", { x, y: at, "text-anchor": anchor, class: "axis", "aria-hidden": "true", ...more }, words));
  rows.forEach((row, i) => {
    if (typeof row === "string" || i % every === 0) text(left - 5, y(i) + tall / 2 + 4, "end", layerName(row));
  });
  columns.forEach((column, j) => {
    if (j % every === 0) text(left + (j + 0.5) * cell, height + 13, "middle", layerName(column));
  });
  text(left, height + 28, "start", options.columnName);
  if (options.up) text(11, height, "start", options.rowName, { transform: `rotate(-90 11 ${height})` });
}
