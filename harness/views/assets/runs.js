// The table of all runs: sorts by a click on a title, filters by what is typed, and draws the runs that are ticked.
(function () {
  "use strict";
  const body = document.querySelector(".all-runs tbody"), filter = document.getElementById("filter");
  const rows = [...body.rows], boxes = rows.map((row) => row.querySelector("input"));
  const heads = [...document.querySelectorAll(".all-runs thead th")];
  const value = (row, column) => row.cells[column].dataset.by ?? row.cells[column].textContent;

  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const isNumber = rows.some((row) => "by" in row.cells[column].dataset);
    rows.sort((a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNumber ? Number(x) - Number(y) : x.localeCompare(y);
      return up ? order : -order;
    });
    body.append(...rows);
  }));

  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const left = rows.filter((row) => !row.hidden).length;
    document.getElementById("count").textContent = left + " of " + rows.length + " runs";
  });

  const choose = () => document.dispatchEvent(
    new CustomEvent("runs-chosen", { detail: boxes.filter((box) => box.checked).map((box) => Number(box.value)) }));
  body.addEventListener("change", choose);
  choose();
})();
