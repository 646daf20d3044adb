// The page of flags: one field filters the rows of all its tables.
if (location.pathname.endsWith("/flags.html")) {
  const field = document.createElement("input");
  field.className = "flag-filter";
  field.type = "search";
  field.placeholder = "Filter by flag, for example --swap-attention";
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    for (const row of document.querySelectorAll("article tbody tr")) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });
  document.querySelector("article h1").after(field);
}

// A flag is searched as it is typed: leading dashes would exclude the word.
document.addEventListener("input", (event) => {
  const field = event.target;
  if (field.matches(".md-search__input") && /(^|\s)--?\w/.test(field.value)) {
    field.value = field.value.replace(/(^|\s)--?(?=\w)/g, "$1");
  }
}, true);
