// Draws a dashboard with the components that Grafana's own pages are made of.
//
// `window.shown` is what `dashboards/pictures.py` found: the dashboard's JSON, and for each panel the answers of Prometheus.
// What Grafana's server and its panel plugins do around these components is done here: the grid, the frames of the
// Prometheus data source (a value for each step, null where there is none), and the defaults of the panels' options.

import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

// Of Grafana's two builds this is the one for `require`. In its ES modules esbuild does as Node.js does: the default export
// of an older package is the whole package, and no component.
const { createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayValues } = require('@grafana/data');
const { BigValue, GlobalStyles, Icon, PanelChrome, Table, ThemeContext, TimeSeries, VizRepeater } = require('@grafana/ui');

const COLUMNS = 24;
const CELL_HEIGHT = 30;
const MARGIN = 8;
const TIME_ZONE = 'utc';
const theme = createTheme({ colors: { mode: 'dark' } });

const DEFAULTS = {
  stat: { color: { mode: 'thresholds' }, thresholds: { mode: 'absolute', steps: [{ value: null, color: 'green' }] } },
  timeseries: { color: { mode: 'palette-classic' } },
  table: { color: { mode: 'thresholds' } },
};

function fieldConfig(panel) {
  const config = { ...DEFAULTS[panel.type], ...panel.fieldConfig.defaults };
  if (config.thresholds) {
    const steps = config.thresholds.steps.map((step) => ({ ...step, value: step.value ?? -Infinity }));
    config.thresholds = { ...config.thresholds, steps };
  }
  if (config.custom?.stacking) {
    config.custom = { ...config.custom, stacking: { group: 'A', ...config.custom.stacking } };
  }
  return config;
}

function field(name, type, values, config, more = {}) {
  const made = { name, type, values, config, ...more };
  made.display = getDisplayProcessor({ field: made, theme, timeZone: TIME_ZONE });
  return made;
}

function frame(fields) {
  return { fields, length: fields[0].values.length };
}

function legendOf(legend, labels) {
  return legend.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => labels[label] ?? '');
}

function seriesFrames(panel, answers) {
  const times = [];
  for (let at = window.shown.from; at <= window.shown.to; at += window.shown.step) {
    times.push(at * 1000);
  }
  const frames = [];
  for (const { legend, result } of answers) {
    for (const { metric, values } of result) {
      const found = new Map(values.map(([at, value]) => [Math.round(at * 1000), parseFloat(value)]));
      const numbers = times.map((at) => (Number.isFinite(found.get(at)) ? found.get(at) : null));
      const config = { ...fieldConfig(panel), displayNameFromDS: legendOf(legend, metric) };
      const state = { seriesIndex: frames.length };
      frames.push(
        frame([
          field('Time', FieldType.time, times, {}),
          field('Value', FieldType.number, numbers, config, { labels: metric, state }),
        ])
      );
    }
  }
  return frames;
}

function tableFrame(panel, [{ result }]) {
  const hidden = panel.transformations?.[0]?.options.excludeByName ?? {};
  const names = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].filter((name) => name !== '__name__').sort();
  const columns = names.map((name) => field(name, FieldType.string, result.map(({ metric }) => metric[name] ?? ''), { custom: {} }));
  const values = result.map(({ value }) => parseFloat(value[1]));
  const value = field('Value', FieldType.number, values, { custom: {}, ...fieldConfig(panel) });
  return frame([...columns, value].filter(({ name }) => !hidden[name]));
}

function Graph({ panel, answers, width, height }) {
  const { from, to } = window.shown;
  const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000) };
  return (
    <TimeSeries
      frames={seriesFrames(panel, answers)}
      structureRev={1}
      timeRange={timeRange}
      timeZone={TIME_ZONE}
      legend={panel.options.legend}
      options={panel.options}
      width={width}
      height={height}
    />
  );
}

function Stat({ panel, answers, width, height }) {
  const { reduceOptions, colorMode, graphMode, justifyMode, textMode, wideLayout, orientation } = panel.options;
  const data = seriesFrames(panel, answers);
  const getValues = () =>
    getFieldDisplayValues({
      fieldConfig: { defaults: fieldConfig(panel), overrides: [] },
      reduceOptions,
      replaceVariables: (text) => text,
      theme,
      data,
      timeZone: TIME_ZONE,
    });
  return (
    <VizRepeater
      getValues={getValues}
      renderValue={({ value, width, height, count }) => (
        <BigValue
          value={value.display}
          count={count}
          colorMode={colorMode}
          graphMode={graphMode}
          justifyMode={justifyMode}
          textMode={textMode}
          wideLayout={wideLayout}
          width={width}
          height={height}
          theme={theme}
        />
      )}
      source={data}
      orientation={orientation}
      autoGrid
      itemSpacing={3}
      width={width}
      height={height}
    />
  );
}

const KINDS = {
  timeseries: Graph,
  stat: Stat,
  table: ({ panel, answers, width, height }) => <Table data={tableFrame(panel, answers)} width={width} height={height} />,
};

function Panel({ panel, width, height }) {
  const Kind = KINDS[panel.type];
  return (
    <PanelChrome title={panel.title} width={width} height={height}>
      {(width, height) => <Kind panel={panel} answers={window.shown.answers[panel.id]} width={width} height={height} />}
    </PanelChrome>
  );
}

function RowTitle({ title }) {
  return (
    <div style={{ display: 'flex', alignItems: 'center', height: '100%', ...theme.typography.h6 }}>
      <Icon name="angle-down" />
      {title}
    </div>
  );
}

function Header() {
  const { board, caption } = window.shown;
  const choices = board.templating.list.filter(({ type }) => type === 'query');
  const chip = { border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, padding: '2px 8px', marginRight: 8 };
  return (
    <div style={{ padding: `${MARGIN}px 0` }}>
      <div style={{ ...theme.typography.h3, marginBottom: 6 }}>{board.title}</div>
      {choices.map(({ name, label }) => (
        <span key={name} style={chip}>
          {label}: All
        </span>
      ))}
      <span style={{ color: theme.colors.text.secondary }}>{caption}</span>
    </div>
  );
}

function Dashboard() {
  const { board, width } = window.shown;
  const column = (width - MARGIN) / COLUMNS;
  const heightOf = (cells) => cells * CELL_HEIGHT + (cells - 1) * MARGIN;
  const bottom = Math.max(...board.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <div style={{ width, padding: `0 ${MARGIN}px ${MARGIN}px`, boxSizing: 'border-box' }}>
      <Header />
      <div style={{ position: 'relative', height: heightOf(bottom) }}>
        {board.panels.map((panel) => {
          const { x, y, w, h } = panel.gridPos;
          const size = { width: Math.floor(w * column - MARGIN), height: heightOf(h) };
          const place = { position: 'absolute', left: Math.floor(x * column), top: y * (CELL_HEIGHT + MARGIN), ...size };
          return (
            <div key={`${panel.type}-${panel.id}-${y}`} style={place}>
              {panel.type === 'row' ? <RowTitle title={panel.title} /> : <Panel panel={panel} {...size} />}
            </div>
          );
        })}
      </div>
    </div>
  );
}

// Graphs are drawn on canvases, which do not change when a font comes later.
function Page() {
  const [hasFonts, setHasFonts] = useState(false);
  useEffect(() => {
    Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`))).then(() => setHasFonts(true));
  }, []);
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      {hasFonts && <Dashboard />}
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById('root')).render(<Page />);
