"use strict";
(() => {
  const search = document.getElementById("search");
  const outcome = document.getElementById("last");
  const count = document.getElementById("count");
  const rows = [...document.querySelectorAll("tbody tr")];
  if (!search) return;
  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const kept = row.firstElementChild.textContent.toLowerCase().includes(wanted)
        && (!outcome.value || row.dataset.last === outcome.value);
      row.hidden = !kept;
      shown += kept;
    }
    count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
  };
  search.addEventListener("input", filter);
  outcome.addEventListener("change", filter);
  filter();
})();
