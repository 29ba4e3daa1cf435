#!/bin/sh
# pages.sh BUILD: the pages that choir writes, in a real browser: no error in its console, markup in names and texts does
# not run, nothing is wider than the window, keyboard and addresses work.
set -eu
build=$1
browser=$(command -v chromium || command -v chromium-browser || true)
[ -n "$browser" ] || {
  echo "NOT TESTED: pages in a browser: chromium (Debian: chromium) is not installed"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
choir() { "$build/choir" "$@" >log 2>&1 || { cat log; exit 1; }; }

# Two runs of two MoE layers each, one under a name that is markup; a text full of it.
evil='<img src=x onerror=document.title="ran">'
awk 'BEGIN { srand(1); split("ka lo mi ten sur ape rin do", s)
  for (i = 0; i < 3000; i++) { line = ""; for (w = 0; w < 9; w++) line = line s[int(rand() * 8) + 1] s[int(rand() * 8) + 1] " "; print line } }' >book.txt
cat >config.json <<'J'
{"model": {"layers": 4, "d_model": 32, "d_hidden": 48, "heads": 2, "experts": 4},
 "train": {"sequence_length": 32, "batch_sequences": 8, "steps": 8, "learning_rate": 0.05}}
J
choir tokenizer train --out en.model --vocab-size 280 book.txt
choir data build --out data --tokenizer en.model --holdout 0.1 book.txt
choir train --config config.json --data data --out "$evil" --set "model.name=<img src=x onerror=alert()>"
choir train --config config.json --data data --out other --set learning_rate=0.01
{ head -n 20 book.txt; echo "</script><script>document.title='ran'</script><b onclick=x>$evil"; } >page.txt
choir inspect other "$evil" --text page.txt --out inspect.html
choir report "$evil" --out report.html
choir report "$evil" other --out compare.html
cat >cluster.json <<'J'
{"name": "<img src=x onerror=alert()>", "notes": "</script><b onclick=x>", "currency": "<b>x", "ranks": 8,
 "fp32_gflops": 1, "memory_gib": 1, "memory_gbs": 1, "price_per_rank_hour": 1,
 "levels": [{"name": "<img src=x onerror=alert()>", "ranks": 8, "bandwidth_gbs": 1, "latency_us": 1}]}
J
choir plan config.json --cluster cluster.json --out plan.html
pages="inspect report compare plan"
if "$build/choir" study list >/dev/null 2>&1; then
  pages="$pages study"
  cat >two.json <<'J'
{"name": "two", "title": "choir: <img src=x onerror=alert()>", "question": "</style><script>document.title='ran'</script>",
 "arms": [{"name": "<img src=x onerror=alert()>", "set": {"router.name": "expert_choice"}},
          {"name": "top-2", "set": {"router.name": "gshard_top2"}}],
 "claims": [{"text": "<b onclick=x>", "kind": "loss", "arm": "top-2", "rival": "<img src=x onerror=alert()>", "figure": 1}]}
J
  echo '{"config":' "$(cat config.json)" ', "budgets": [1024, 2048], "seeds": 2, "rates": [0.05], "deviation": 0.01}' >scale.json
  choir study run two.json --data data --out studies --scale scale.json
  cp studies/two-scale/report.html study.html
else
  echo "NOT TESTED: a study's page in a browser: choir study lacks packages of Python"
fi

# show WIDTH PAGE: the page as the browser made it, into dom; what its console said, into console.
show() {
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --window-size="$1,900" \
    --virtual-time-budget=3000 --enable-logging=stderr --dump-dom "file://$work/$2" >dom 2>console || {
    cat console
    exit 1
  }
}
failures=0
fail() {
  echo "$*" >&2
  failures=$((failures + 1))
}

# A copy that may run one more script, whose findings become the title: the page's own policy allows none.
probed() {
  sed 's/<meta http-equiv=Content-Security-Policy[^>]*>//' "$1" >"$2"
  cat >>"$2" <<'J'
<script>
setTimeout(() => {
  const found = [], key = (node, key) => node.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window: " + document.documentElement.scrollWidth);
  for (const a of document.querySelectorAll("a[href^='#']")) if (!document.getElementById(a.hash.slice(1))) found.push("a link to nowhere: " + a.href);
  if (document.querySelector("img, iframe, object")) found.push("markup came to life");
  const tokens = document.querySelectorAll(".t");
  if (tokens.length) {
    tokens[0].focus();
    key(tokens[0], "ArrowRight");
    if (document.activeElement !== tokens[1]) found.push("the arrow key does not walk");
    key(tokens[1], "Enter");
    if (document.getElementById("tip").hidden) found.push("Enter opens no note");
    if (!location.hash.includes("token=1")) found.push("the address does not say which token: " + location.hash);
    const tops = [...document.querySelectorAll("#tip small")].map((line) => line.offsetTop);
    if (new Set(tops).size !== tops.length) found.push("lines of the note run together");
    key(document, "Escape");
    if (!document.getElementById("tip").hidden) found.push("Escape closes no note");
    const rows = [...document.querySelectorAll("#difficulty tr")].slice(1).map((row) => [...row.cells].slice(1).map((cell) => +cell.textContent));
    const all = [...tokens].map((_, t) => count(t)).reduce((a, b) => a + b) / tokens.length;
    if (rows.length !== 2 || rows.some((row) => row.length !== 5 || Math.abs(row.reduce((a, b) => a + b) / 5 - all) > 0.05)) found.push("experts by difficulty: " + JSON.stringify(rows) + ", in all " + all);
    const told = (label) => parseFloat([...document.querySelectorAll("#layerfigures div")].find((card) => card.textContent.includes(label))?.textContent);
    const none = [...tokens].filter((_, t) => !count(t)).length / tokens.length;
    if (!(Math.abs(told("experts per token") - all) < 0.01)) found.push(`the tile says ${told("experts per token")} experts per token, the text ${all}`);
    if (!(Math.abs(told("tokens without an expert") - 100 * none) < 0.06)) found.push(`the tile says ${told("tokens without an expert")} % without any, the text ${none}`);
    for (const card of document.querySelectorAll(".expert")) if (card.querySelector(".best") && !card.querySelector(".words").textContent) found.push("an expert without words");
    const tabs = document.querySelectorAll("[role=tab]");
    tabs[0].focus();
    key(tabs[0], "ArrowRight");
    if (document.activeElement !== tabs[1]) found.push("the arrow key does not change tabs");
    const slider = document.getElementById("view"), before = document.getElementById("figures").textContent;
    if (!slider.offsetWidth || slider.value !== "1") found.push("no slider over checkpoints");
    slider.value = 0;
    slider.dispatchEvent(new Event("input"));
    if (!document.getElementById("viewname").textContent.includes("(1 of 2)") || document.getElementById("figures").textContent === before) found.push("the slider leads nowhere");
  }
  const turns = document.querySelectorAll(".turns button");
  if (turns.length) {
    const ticks = () => document.querySelector(".charts").textContent, before = ticks();
    turns[1].click();
    if (ticks() === before || document.querySelectorAll(".turns button")[1].getAttribute("aria-pressed") !== "true") found.push("curves do not go by tokens");
  } else if (document.querySelector(".charts polyline")) {
    const lines = [...document.querySelector(".charts").querySelectorAll("figure")[0].querySelectorAll("polyline")];
    if (lines.length !== 3 || !lines[2].classList.contains("dash")) found.push("the causal loss is not told apart");
    if (!/begun 2\d\d\d-.* on .*threads.*choir train --config/.test(document.body.textContent)) found.push("nothing says when, where and how it ran");
  }
  document.title = found.length ? "FOUND " + found.join("; ") : "FOUND nothing";
}, 200);
</script>
J
}

for page in $pages; do
  show 1280 $page.html
  grep -E 'CONSOLE|Uncaught|Refused' console | cut -c1-300 | head -n 3 | grep . && fail "$page: its console is not silent"
  grep -q '<title>choir: ' dom || fail "$page: markup ran: $(grep -o '<title>[^<]*' dom | head -n 1)"
  grep -qE '<svg|class="(t|share)' dom || fail "$page: shows nothing"
  probed $page.html probed.html
  for width in 400 1600; do
    show $width probed.html
    grep -q '<title>FOUND nothing' dom || fail "$page, $width wide: $(grep -o '<title>[^<]*' dom | head -n 1)"
  done
done
# An address of a token opens it.
show 1280 'inspect.html#layer=3&token=5'
grep -q 'id="tip" role="tooltip" hidden' dom && fail "inspect: #token=5 opens no note"
[ $failures = 0 ]
