// Searches and filters the failures, and copies commands. Without it the page shows all of them, and no buttons.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  function filter(tools) {
    const target = tools.parentElement;
    const words = tools.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = tools.querySelector("[aria-pressed='true']")?.dataset.state ?? "";
    let shown = 0;
    for (const row of all(".row", target)) {
      const section = document.getElementById(row.dataset.failure).closest("article");
      const text = (row.textContent + section.textContent).toLowerCase();
      row.hidden = (state && row.dataset.state !== state) || !words.every((word) => text.includes(word));
      section.hidden = row.hidden;
      shown += !row.hidden;
    }
    tools.querySelector("[role='status']").textContent =
      words.length || state ? `${shown} of ${all(".row", target).length} shown` : "";
  }

  async function copy(button) {
    const from = button.closest(".command")?.querySelector("code") ?? button.closest("article");
    const words = button.textContent;
    try {
      await navigator.clipboard.writeText(from.matches("code") ? from.textContent : textOf(from));
    } catch {
      getSelection().selectAllChildren(from);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = words; }, 1500);
  }

  function textOf(article) {
    const part = article.cloneNode(true);
    for (const each of all("svg, .steps, .legend, .hidden, button, details", part)) each.remove();
    part.style.contentVisibility = "visible";  // else it has no text below the screen
    article.append(part);
    const text = part.innerText.replace(/\n\s*\n/g, "\n").trim();
    part.remove();
    return text;
  }

  function openTarget() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let each = target; each; each = each.parentElement) {
      if (each instanceof HTMLDetailsElement) each.open = true;
    }
    if (target) target.scrollIntoView();
  }

  function prepare() {
    for (const tools of all(".tools")) tools.hidden = false;
    for (const command of all(".command")) {
      if (command.querySelector("button")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.setAttribute("aria-label", `Copy the command: ${command.dataset.what}`);
      command.append(button);
    }
    for (const each of all("[data-copies]")) each.hidden = false;
  }

  document.addEventListener("input", (event) => {
    if (event.target.matches(".tools input")) filter(event.target.closest(".tools"));
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.matches(".copy, [data-copies]")) copy(button);
    if (button?.matches("[data-state]")) {
      for (const each of all("[data-state]", button.parentElement)) each.setAttribute("aria-pressed", each === button);
      filter(button.closest(".tools"));
    }
  });
  addEventListener("hashchange", openTarget);
  document.addEventListener("renewed", prepare);
  prepare();
  openTarget();
})();
