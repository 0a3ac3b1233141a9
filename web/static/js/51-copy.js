// Buttons that copy a text: data-copy names the element that has it.
(() => {
  "use strict";
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const from = document.getElementById(button.dataset.copy);
    if (!from) return;
    try {
      await navigator.clipboard.writeText(from.textContent.trim());
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 1500);
    } catch {
      // Without the right to write, the text is selected for the user's own keys.
      getSelection().selectAllChildren(from);
    }
  });
})();
