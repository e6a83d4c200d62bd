// Shows how far the wake-up is, and opens the app when a pod has answered. It comes before the page itself, so
// that nothing in a page can take its nonce; the page's elements are found by their data-elasti.
(() => {
  "use strict";
  const click = document.currentScript.dataset.click === "true";
  const each = (name, act) => document.querySelectorAll(`[data-elasti~="${name}"]`).forEach(act);
  let title = "";

  const show = (line) => {
    each("state", (element) => (element.dataset.state = line.stage));
    each("reference", (element) => (element.textContent = line.reference));
    each("stage", (element) => {
      // What is written again is read out again.
      if (element.textContent !== line.text) element.textContent = line.text;
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
          // A browser has six connections to a host: tabs that nobody sees leave them to others.
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
      // The network, or a resolver that was replaced: ask again.
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
