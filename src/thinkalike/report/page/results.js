// The list of results, and what a result says of itself.

function listOfResults(report, show) {
  return report.results.map((entry, number) => {
    const item = el("details", { class: "result", ontoggle: () => fill(item, report, number, show) },
      el("summary", {}, el("span", { class: "kind" }, entry.kind), " ", entry.models.join(", "),
        el("span", { class: "numbers" }, entry.headline),
        el("span", { class: "settings" }, entry.date.slice(0, 16).replace("T", " "))));
    item.dataset.number = number;
    return item;
  });
}

/** Write what stands inside an item of the list, when it is opened for the first time. */
function fill(item, report, number, show) {
  if (!item.open || item.dataset.filled) return;
  item.dataset.filled = "yes";
  const entry = report.results[number];
  const pair = pairsOf(report).find((each) => each.grids.some((grid) => grid.results.includes(number)));
  const { warnings, ...provenance } = entry.provenance;
  withChildren(item, [warnings ? warningsOf(warnings) : "",
    pair ? el("p", {}, el("button", { type: "button", onclick: () => show(pair.key) }, "Show its models side by side")) : "",
    el("p", {}, "To compute it again:"), commandLine(entry.command),
    el("p", { class: "dim" }, `In ${entry.folder}`),
    folded("settings", entry.settings) ?? "", definitions(entry.scalars), folded("provenance", definitions(provenance)),
    ...report.tables.filter((table) => table.result === number).map(tableOfResult)]);
}

function tableOfResult(table) {
  const rest = table.length - table.rows.length;
  const caption = `${plain(table.name)}${rest > 0 ? `: the first ${table.rows.length} of ${table.length} rows; ${table.name}.csv has all` : ""}`;
  return tableOf(caption, table.columns.map(plain), table.rows);
}

function definitions(values) {
  return el("dl", {}, Object.entries(values).flatMap(([name, value]) => [el("dt", {}, plain(name)), el("dd", {}, written(value))]));
}

function written(value) {
  if (Array.isArray(value)) return el("div", {}, value.map((each) => el("div", {}, written(each))));
  if (value && typeof value === "object") return definitions(value);
  return full(value);
}
