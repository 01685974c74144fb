// Sliders of the page of `harness plan --html`: all tables are in the page, nothing is computed here.
(() => {
"use strict";
const fits = JSON.parse(document.getElementById("charts").textContent)[0];
const ranges = ["length", "batch"].map(name => document.getElementById(name));
const values = [fits.lengths, fits.batches];
const detail = document.getElementById("detail");
const buttons = [...document.querySelectorAll(".fits button")];
let chosen = null;

function describe() {
  if (chosen) detail.textContent = chosen.dataset.key.replace(",", ", ") + " GPUs: " + chosen.dataset.title;
}

function draw() {
  const at = ranges.map((range, index) => values[index][Number(range.value)]);
  ranges.forEach((range, index) => {
    document.getElementById(range.id + "-value").textContent = at[index].toLocaleString("en-US");
  });
  const cells = fits.cells[at.join(",")] || {};
  for (const button of buttons) {
    const [css, text, title] = cells[button.dataset.key] || ["none", "-", "not tried"];
    button.className = css + (button === chosen ? " chosen" : "");
    button.textContent = text;
    button.dataset.title = title;
  }
  describe();
}

ranges.forEach(range => range.addEventListener("input", draw));
buttons.forEach(button => button.addEventListener("click", () => { chosen = button; draw(); }));
draw();  // a browser may restore the sliders of a page that is loaded again
})();
