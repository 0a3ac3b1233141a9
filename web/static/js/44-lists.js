// Lists: suggestions while the user types a filter, updates of rows in place, and selection of rows.
(() => {
  "use strict";

  const parse = (text) => new DOMParser().parseFromString(text, "text/html");

  function addSuggestions(input) {
    const box = input.parentElement.querySelector(".suggestions");
    let requestCount = 0, timer = 0;
    const items = () => [...box.querySelectorAll("[role=option]")];
    const active = () => items().findIndex((item) => item.getAttribute("aria-selected") === "true");
    const close = () => {
      clearTimeout(timer);
      requestCount++;
      box.hidden = true;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
    };
    async function loadSuggestions() {
      const turn = ++requestCount;
      const url = new URL(input.getAttribute("hx-get"), location.href);
      url.searchParams.set("q", input.value);
      url.searchParams.set("at", [...input.value.slice(0, input.selectionStart)].length);
      const answer = await fetch(url, { headers: { accept: "text/html" } });
      if (!answer.ok || turn !== requestCount) return;
      const list = parse(await answer.text()).querySelector("ul");
      if (turn !== requestCount || !list || !list.children.length || document.activeElement !== input) return close();
      box.replaceChildren(document.adoptNode(list));
      box.hidden = false;
      input.setAttribute("aria-expanded", "true");
    }
    const loadSoon = () => { clearTimeout(timer); timer = setTimeout(() => loadSuggestions().catch(close), 90); };
    function move(step) {
      const all = items();
      const place = active() < 0 && step < 0 ? all.length - 1 : (active() + step + all.length) % all.length;
      all.forEach((item, index) => item.setAttribute("aria-selected", index === place));
      input.setAttribute("aria-activedescendant", all[place].id);
      all[place].scrollIntoView({ block: "nearest" });
    }
    function accept(item) {
      input.value = item.dataset.text;
      const at = [...input.value].slice(0, item.dataset.cursor).join("").length;
      input.setSelectionRange(at, at);
      input.focus();
      loadSoon();
    }
    for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-controls": "suggested", "aria-expanded": "false" })) input.setAttribute(name, value);
    input.addEventListener("input", (event) => { if (!event.isComposing) loadSoon(); });
    input.addEventListener("focus", loadSoon);
    input.addEventListener("blur", () => setTimeout(() => { if (document.activeElement !== input) close(); }, 150));
    input.addEventListener("keydown", (event) => {
      if (box.hidden || event.isComposing) return;
      if (event.key === "ArrowDown") move(1);
      else if (event.key === "ArrowUp") move(-1);
      else if (event.key === "Escape") close();
      else if ((event.key === "Enter" || event.key === "Tab") && active() >= 0) accept(items()[active()]);
      else { if (event.key === "Enter") close(); return; }
      event.preventDefault();
      event.stopPropagation();
    });
    box.addEventListener("mousedown", (event) => {
      const item = event.target.closest("[role=option]");
      if (item) { event.preventDefault(); accept(item); }
    });
  }

  function addSelection(form) {
    // The table may be outside of the form: its checkboxes belong to the form by their attribute `form`.
    const boxes = () => [...form.elements].filter((field) => field.matches("tbody .pick input"));
    const shown = form.querySelector(".picked");
    const all = form.querySelector("[data-pick-all]");
    const show = () => {
      const count = boxes().filter((box) => box.checked).length;
      shown.textContent = count ? shown.dataset.text.replace("#", count) : shown.dataset.none ?? "";
      all.checked = count > 0 && count === boxes().length;
      all.indeterminate = count > 0 && !all.checked;
    };
    let last = null;
    document.addEventListener("click", (event) => {
      const box = event.target.closest("tbody .pick input");
      if (!box || box.form !== form) return;
      if (event.shiftKey && last && last.isConnected) {
        const list = boxes();
        const [from, to] = [list.indexOf(last), list.indexOf(box)].sort((a, b) => a - b);
        for (const other of list.slice(from, to + 1)) other.checked = box.checked;
      }
      last = box;
      show();
    });
    all.addEventListener("change", () => { for (const box of boxes()) box.checked = all.checked; show(); });
    show();
  }

  function updateInPlace(place) {
    const pill = document.querySelector("[data-gone-rows]");
    // Marks the rows that this page of the list no longer has, and returns their number. They keep the state in which they were last seen.
    // `data-live-rows` selects the rows whose state may have changed since.
    function markGone(rows, isLastPage) {
      const ids = new Set([...rows].map((row) => row.id));
      const shown = [...place.querySelectorAll("tbody tr[id]")];
      // Newer rows move the last ones to the next page: those are still in the list.
      const end = isLastPage ? shown.length : shown.findLastIndex((old) => ids.has(old.id));
      shown.forEach((old, index) => old.classList.toggle("gone", index < end && !ids.has(old.id) && old.matches(place.dataset.liveRows)));
      return shown.filter((old) => old.classList.contains("gone")).length;
    }
    async function update() {
      const answer = await fetch(place.getAttribute("hx-get"), { headers: { accept: "text/html", "hx-request": "true" } });
      const detail = { ctx: { response: { status: answer.status } } };
      place.dispatchEvent(new CustomEvent("htmx:after:request", { bubbles: true, detail }));
      if (!answer.ok) return;
      const page = parse(await answer.text());
      const rows = page.querySelectorAll("#live tbody tr");
      let count = 0;
      for (const row of rows) {
        const old = document.getElementById(row.id);
        if (!old) { count++; continue; }
        const cells = [...row.children];
        old.className = row.className;
        [...old.children].forEach((cell, index) => {
          if (!cell.matches(".pick") && cells[index] && cell.innerHTML !== cells[index].innerHTML) cell.innerHTML = cells[index].innerHTML;
        });
      }
      const goneCount = markGone(rows, !page.querySelector(".pager [rel=next]"));
      const { newRuns, goneRows } = pill.dataset;
      const parts = [];
      if (count && newRuns) parts.push(newRuns.replace("#", count === rows.length ? `${count}+` : count));
      if (goneCount) parts.push(goneRows.replace("#", goneCount));
      pill.textContent = parts.join(" · ");
      pill.hidden = !parts.length;
    }
    place.addEventListener("live", () => update().catch(() => place.dispatchEvent(new CustomEvent("htmx:error", { bubbles: true }))));
  }

  for (const input of document.querySelectorAll(".filter-box input")) addSuggestions(input);
  for (const form of document.querySelectorAll("[data-bulk]")) addSelection(form);
  const live = document.querySelector("[data-live-rows]");
  if (live) updateInPlace(live);
})();
