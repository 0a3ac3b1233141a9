// Adds and removes rows of fields (`data-row`) within `data-rows`. Without this script, a form has one empty row at its end, and gets
// another one each time it is saved.
(() => {
  "use strict";

  const ROW_COUNT_MAX = 60;

  function watchRows(list) {
    const rows = () => [...list.querySelectorAll("[data-row]")];
    const adder = list.querySelector("[data-row-add]");
    const fields = (row) => [...row.querySelectorAll("input, select")];
    let nextNumber = rows().length;

    function clearRow(row) {
      row.classList.remove("invalid");
      for (const note of row.querySelectorAll(".error")) note.remove();
      for (const field of fields(row)) {
        field.value = "";
        for (const name of ["aria-invalid", "aria-describedby"]) field.removeAttribute(name);
      }
    }

    function add() {
      const all = rows();
      const unused = all.find((row) => fields(row).every((field) => !field.value));
      if (unused) return void fields(unused)[0].focus();
      if (all.length >= ROW_COUNT_MAX) return;
      const row = all.at(-1).cloneNode(true);
      clearRow(row);
      for (const field of fields(row)) field.name = field.name.replace(/\.\d+\./, `.${nextNumber}.`);
      nextNumber += 1;
      all.at(-1).after(row);
      fields(row)[0].focus();
    }

    function remove(row) {
      const all = rows();
      const index = all.indexOf(row);
      if (all.length === 1) clearRow(row);
      else row.remove();
      const next = rows()[Math.min(index, rows().length - 1)];
      fields(next)[0].focus();
    }

    adder.hidden = false;
    for (const button of list.querySelectorAll("[data-row-remove]")) button.hidden = false;
    adder.addEventListener("click", add);
    list.addEventListener("click", (event) => {
      const button = event.target.closest("[data-row-remove]");
      if (button) remove(button.closest("[data-row]"));
    });
  }

  for (const list of document.querySelectorAll("[data-rows]")) watchRows(list);
})();
