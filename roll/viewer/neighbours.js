"use strict";
addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target instanceof HTMLInputElement) return;
  const link = { n: "following-page", p: "previous-page", g: "group", i: "index" }[event.key];
  if (link) document.getElementById(link)?.click();
});
