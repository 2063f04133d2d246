// Claims of papers with their verdicts, as signs and words, never by colour alone.

const VERDICTS = { holds: ["✓", "holds"], "does not hold": ["✗", "fails"], undecided: ["?", "undecided"] };

function drawClaims(report, place, words) {
  place.hidden = report.claims.length === 0;
  const found = report.claims.filter((claim) => matches([claim.claim, claim.verdict, textOf(report.results[claim.result])].join(" ").toLowerCase(), words));
  const groups = Map.groupBy ? Map.groupBy(found, (claim) => claim.result) : grouped(found);
  place.replaceChildren(el("h2", { id: "claims-title" }, "Claims and their verdicts"), el("p", {}, tally(found)),
    ...[...groups].flatMap(([number, claims]) => experiment(report.results[number], claims)));
}

function grouped(claims) {
  const groups = new Map();
  for (const claim of claims) groups.set(claim.result, [...(groups.get(claim.result) ?? []), claim]);
  return groups;
}

function tally(claims) {
  const verdicts = [...new Set(claims.map((claim) => claim.verdict))];
  const counts = verdicts.map((verdict) => `${claims.filter((claim) => claim.verdict === verdict).length} ${verdict}`);
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
  const [sign, name] = VERDICTS[verdict] ?? ["–", "untestable"];
  return el("span", { class: `verdict ${name}` }, `${sign} ${verdict}`);
}
