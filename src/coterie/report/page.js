"use strict";

// Dragging would keep a finger from scrolling the page.
const mouse = matchMedia("(pointer: fine)").matches;
const dragmode = mouse ? "zoom" : false;
const config = {
  responsive: true,
  displaylogo: false,
  displayModeBar: mouse ? "hover" : false,
  modeBarButtons: [["toImage", "resetScale2d"]],
};
const charts = [...document.querySelectorAll(".chart")];

for (const chart of charts) {
  const { data, layout } = JSON.parse(document.getElementById(chart.id + "-figure").textContent);
  chart.replaceChildren();
  Plotly.newPlot(chart, data, { ...layout, dragmode }, config);
}

const paperWidth = 640;
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const chart of charts) {
    Plotly.relayout(chart, { width: paperWidth, height: chart.classList.contains("tall") ? 480 : 240 });
  }
});
addEventListener("afterprint", () => {
  for (const chart of charts) Plotly.relayout(chart, { width: null, height: null, autosize: true });
});
