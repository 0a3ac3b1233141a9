// Buttons that copy a text: `data-copy` names the element with the text.
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
      // Without the permission to write to the clipboard, selects the text, so that the user can copy it with the keyboard.
      getSelection().selectAllChildren(from);
    }
  });
})();
