// Menus of the header: they close on Escape and on a click elsewhere, and load their content when opened. Also lists with a text filter.
(() => {
  "use strict";

  const openMenus = () => document.querySelectorAll("details.menu[open]");

  document.addEventListener("click", (event) => {
    for (const menu of openMenus()) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of openMenus()) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });

  async function loadMenu(place) {
    const address = place.dataset.load;
    delete place.dataset.load;
    const answer = await fetch(address, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const list = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("namespaces");
    if (!list) return;
    place.replaceChildren(document.adoptNode(list));
    list.querySelector("input").focus();
  }

  document.addEventListener("toggle", (event) => {
    const menu = event.target;
    if (!menu.open || !menu.matches?.("details.menu")) return;
    for (const other of openMenus()) if (other !== menu) other.open = false;
    const place = menu.querySelector("[data-load]");
    if (place) loadMenu(place).catch(() => {});
    else menu.querySelector("input")?.focus();
  }, true);

  document.addEventListener("input", (event) => {
    const selector = event.target.dataset.narrow;
    if (!selector) return;
    const words = event.target.value.toLowerCase();
    for (const item of document.querySelectorAll(selector)) item.hidden = !item.textContent.toLowerCase().includes(words);
  });
  document.addEventListener("keydown", (event) => {
    const selector = event.target.dataset?.narrow;
    if (event.key !== "Enter" || !selector || event.isComposing) return;
    event.preventDefault();
    [...document.querySelectorAll(selector)].find((item) => !item.hidden)?.querySelector("a").click();
  });
})();
