// Claims of papers with their verdicts, as signs and words, never by colour alone.

const VERDICTS = new Map([["holds", ["✓", "holds"]], ["does not hold", ["✗", "fails"]], ["undecided", ["?", "undecided"]]]);

function drawClaims(report, place, words) {
  place.hidden = report.claims.length === 0;
  const found = report.claims.filter((claim) => matches([claim.claim, claim.verdict, textOf(report.results[claim.result])].join(" ").toLowerCase(), words));
  const groups = grouped(found);
  replaceChildren(place, el("h2", { id: "claims-title" }, "Claims and their verdicts"), el("p", {}, tally(found)),
    [...groups].flatMap(([number, claims]) => experiment(report.results[number], claims)));
}

function grouped(claims) {
  const groups = new Map();
  for (const claim of claims) {
    if (!groups.has(claim.result)) groups.set(claim.result, []);
    groups.get(claim.result).push(claim);
  }
  return groups;
}

function tally(claims) {
  const numbers = new Map();
  for (const { verdict } of claims) numbers.set(verdict, (numbers.get(verdict) ?? 0) + 1);
  const counts = [...numbers].map(([verdict, number]) => `${number} ${verdict}`);
  return `${count(claims.length, "claim")}${counts.length ? `: ${counts.join(", ")}` : ""}`;
}

function experiment(entry, claims) {
  return [el("h3", {}, entry.kind, " ", el("span", { class: "settings" }, `${entry.settings} ${entry.key}`)),
    el("ul", { class: "claims" }, claims.map((claim) => el("li", {},
      el("div", {}, badge(claim.verdict), " ", el("strong", {}, claim.claim)),
      el("div", {}, full(claim.numbers)), el("div", { class: "dim" }, `over ${full(claim.units)}; to hold it must be: ${full(claim.tolerance)}`)))),
    commandLine(entry.command)];
}

function badge(verdict) {
  const [sign, name] = VERDICTS.get(verdict) ?? ["–", "untestable"];
  return el("span", { class: `verdict ${name}` }, `${sign} ${verdict}`);
}
