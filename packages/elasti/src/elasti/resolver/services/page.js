// Shows how far the wake-up is, and opens the app once a pod answers. This script precedes the page's HTML, so that
// nothing in a template can take its nonce. It finds the page's elements by their data-elasti attributes.
(() => {
  "use strict";
  const click = document.currentScript.dataset.click === "true";
  const each = (name, act) => document.querySelectorAll(`[data-elasti~="${name}"]`).forEach(act);
  let title = "";

  const show = (line) => {
    each("state", (element) => (element.dataset.state = line.stage));
    each("reference", (element) => (element.textContent = line.reference));
    each("stage", (element) => {
      // Screen readers announce text again when it is set again.
      if (element.textContent !== line.text) element.textContent = line.text;
    });
    each("parts", (list) => {
      const items = (line.parts || []).map(([name, state]) => {
        const item = document.createElement("li");
        item.dataset.state = state;
        item.textContent = `${name}: ${state}`;
        return item;
      });
      list.replaceChildren(...items);
    });
    document.title = `${line.text} · ${title}`;
  };

  const follow = async (reader) => {
    const decoder = new TextDecoder();
    for (let rest = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) return false;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const text of lines.filter(Boolean)) {
        const line = JSON.parse(text);
        show(line);
        if (line.stage === "ready") return true;
        if (document.hidden) {
          // A browser opens six connections to a host; hidden tabs leave them to visible ones.
          reader.cancel();
          return false;
        }
      }
    }
  };

  const watch = async () => {
    try {
      const options = { headers: { "X-Elasti-Wait": "1" }, cache: "no-store", redirect: "manual" };
      const response = await fetch(location.href, options);
      if (response.headers.has("X-Elasti-State")) {
        if (await follow(response.body.getReader())) return location.reload();
      } else if (![429, 502, 503, 504].includes(response.status)) {
        return location.reload(); // the app has answered
      }
    } catch {
      // A network error, or a replaced resolver: ask again.
    }
    setTimeout(watch, 2000);
  };

  const begin = () => {
    const began = Date.now();
    setInterval(() => {
      const seconds = Math.round((Date.now() - began) / 1000);
      each("elapsed", (element) => (element.textContent = seconds < 100 ? `${seconds} s` : `${Math.round(seconds / 60)} min`));
    }, 1000);
    watch();
  };

  document.addEventListener("DOMContentLoaded", () => {
    title = document.title;
    if (!click) return begin();
    each("wake", (button) => {
      button.hidden = false;
      button.addEventListener("click", () => {
        each("wake", (other) => (other.hidden = true));
        begin();
      });
    });
  });
})();
