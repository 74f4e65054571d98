// The table of all images: a search filters its rows, a click on a heading sorts them.
const table = document.querySelector("#images");
if (table) {
  const body = table.tBodies[0], rows = [...body.rows];
  const shown = document.querySelector("#shown");
  document.querySelector("#find").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    shown.textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
  });
  table.querySelectorAll("th button").forEach((button, column) => {
    let turn = -1;
    button.addEventListener("click", () => {
      const value = (row) => row.cells[column].dataset.n ?? row.cells[column].textContent;
      rows.sort((first, second) => {
        const [a, b] = [value(first), value(second)];
        return turn * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
      });
      turn = -turn;
      body.append(...rows);
    });
  });
}
