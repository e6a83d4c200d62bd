// What the theme adds when a page is shown: tables that scroll also scroll by keyboard, and a copy button is not a menu.
new MutationObserver(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) box.tabIndex = 0;
  for (const menu of document.querySelectorAll(".md-code__nav:not([role])")) menu.role = "none";
}).observe(document.body, { childList: true, subtree: true });
