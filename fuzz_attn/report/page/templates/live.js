// Replaces the results by those of a newer page every ten seconds, and keeps what is open and what has the focus.
"use strict";
const follow = document.getElementById("follow");
const state = document.getElementById("state");
let mark = null;

function focusable(main) {
  return [...main.querySelectorAll("a, summary, input, button, [tabindex='0']")];
}

function replace(text) {
  const main = document.getElementById("main");
  const next = new DOMParser().parseFromString(text, "text/html").getElementById("main");
  const open = new Map([...main.querySelectorAll("details")].map((each) => [each.firstElementChild.textContent, each.open]));
  const focused = focusable(main).indexOf(document.activeElement);
  for (const each of next.querySelectorAll("details")) {
    each.open = open.get(each.firstElementChild.textContent) ?? each.open;
  }
  const top = window.scrollY;
  main.replaceChildren(...next.childNodes);
  window.scrollTo({ top, behavior: "instant" });
  document.dispatchEvent(new Event("renewed"));
  if (focused >= 0) focusable(main)[focused]?.focus({ preventScroll: true });
}

async function renew() {
  if (!follow.checked) return;
  try {
    const answer = await fetch("/", { headers: mark ? { "If-None-Match": mark } : {}, cache: "no-store" });
    if (answer.status === 200) {
      mark = answer.headers.get("ETag");
      replace(await answer.text());
    }
    state.textContent = answer.status === 500 ? "The log cannot be read any more." : "";
  } catch {
    state.textContent = "The server does not answer. These are its last results.";
  }
}

setInterval(renew, 10000);
