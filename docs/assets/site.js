// The page of flags: one field filters the rows of its table. flags.html?q=--swap-attention fills it.
const flags = document.querySelector("#all-flags");
if (flags) {

  const field = document.createElement("input");
  field.className = "flag-filter";
  field.type = "search";
  field.placeholder = "Filter: --swap-attention, refused, mapped ...";
  const count = document.createElement("p");
  count.className = "flag-count";
  const table = flags.parentElement.querySelector("#all-flags ~ table, #all-flags ~ * table");
  table.dataset.flags = "";
  const rows = [...table.tBodies[0].rows];
  const filter = () => {
    const words = field.value.trim().toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} flags`;
  };
  field.addEventListener("input", filter);
  flags.after(field, count);
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  filter();
}

// A flag is searched as it is typed: leading dashes would exclude it, a plus wants all its words.
document.addEventListener("input", (event) => {
  const field = event.target;
  if (field.matches(".md-search__input") && /(^|\s)--?\w/.test(field.value)) {
    field.value = field.value.replace(/(^|\s)--?(?=\w)/g, "$1+");
  }
}, true);
