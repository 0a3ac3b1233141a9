// Adds a copy button to code (`pre.copy`), and reads a file that the user chooses into the text field named by `data-into`.
(() => {
  "use strict";

  const ICON = '<svg class="ico" viewBox="0 0 16 16" aria-hidden="true"><path class="line" d="M6 5.5h7v8H6zM3 10.5v-8h7"/></svg>';

  function addButtons(root) {
    for (const pre of root.querySelectorAll("pre.copy")) {
      if (pre.parentElement.classList.contains("copyable") || !navigator.clipboard) continue;
      const frame = document.createElement("div");
      frame.className = "copyable";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy-button";
      button.setAttribute("aria-label", pre.dataset.copy);
      button.innerHTML = ICON;
      button.addEventListener("click", () => {
        navigator.clipboard.writeText(pre.textContent).then(() => {
          button.textContent = "✓";
          setTimeout(() => { button.innerHTML = ICON; }, 1500);
        });
      });
      pre.replaceWith(frame);
      frame.append(pre, button);
    }
  }

  document.addEventListener("change", (event) => {
    const into = event.target.dataset && event.target.dataset.into;
    const file = into && event.target.files && event.target.files[0];
    if (file) file.text().then((text) => { document.getElementById(into).value = text; });
  });

  addButtons(document);
  document.addEventListener("htmx:after:swap", () => addButtons(document));
})();
