package main

// A batch's body: a table, then the columns as Arrow lays them out, each buffer padded to 8 bytes.

import (
	"errors"
	"fmt"
)

// Numbers of the columns.
const (
	offsetDeltaColumn = iota
	timestampColumn
	keyColumn
	valueColumn
	headersColumn
)

var errLayout = errors.New("the body is not laid out as its table says")

func writeBody(records []Record) (body []byte, attributes uint16) {
	var table, columns []byte
	add := func(number, flags byte, there uint16, column []byte) {
		attributes |= there
		table = le.AppendUint32(append(table, number, flags, 0, 0), uint32(len(column)))
		columns = append(columns, column...)
	}

	var times []byte
	differ := false
	for _, record := range records {
		times = le.AppendUint64(times, uint64(record.Timestamp))
		differ = differ || record.Timestamp != records[0].Timestamp
	}
	if differ {
		add(timestampColumn, 0, timestampsThere, times)
	}

	keys, values := make([][]byte, len(records)), make([][]byte, len(records))
	for i, record := range records {
		keys[i], values[i] = record.Key, record.Value
	}
	for _, each := range []struct {
		number       byte
		cells        [][]byte
		there, empty uint16
	}{
		{keyColumn, keys, keysThere, keysEmpty},
		{valueColumn, values, valuesThere, valuesEmpty},
	} {
		nulls, size := counted(each.cells)
		switch {
		case nulls == len(records): // All are null: that is said by nothing at all.
		case nulls == 0 && size == 0:
			attributes |= each.empty
		default:
			column, flags := writeCells(each.cells)
			add(each.number, flags, each.there, column)
		}
	}

	var names, headerValues [][]byte
	ends := le.AppendUint32(nil, 0)
	for _, record := range records {
		for _, header := range record.Headers {
			names, headerValues = append(names, []byte(header.Name)), append(headerValues, header.Value)
		}
		ends = le.AppendUint32(ends, uint32(len(names)))
	}
	if len(names) > 0 {
		nameCells, _ := writeCells(names)
		valueCells, flags := writeCells(headerValues)
		column := append(append(padded(ends), nameCells...), valueCells...)
		add(headersColumn, flags<<1, headersThere, column)
	}
	return append(table, columns...), attributes
}

// writeCells returns the bitmap, where some cell is null, the offsets and the data.
func writeCells(cells [][]byte) (column []byte, flags byte) {
	bitmap, data := make([]byte, (len(cells)+7)/8), []byte{}
	offsets := le.AppendUint32(nil, 0)
	for i, cell := range cells {
		if cell != nil {
			bitmap[i/8] |= 1 << (i % 8)
		}
		data = append(data, cell...)
		offsets = le.AppendUint32(offsets, uint32(len(data)))
	}
	if nulls, _ := counted(cells); nulls > 0 {
		column, flags = padded(bitmap), someNull
	}
	return append(append(column, padded(offsets)...), padded(data)...), flags
}

func counted(cells [][]byte) (nulls, size int) {
	for _, cell := range cells {
		size += len(cell)
		if cell == nil {
			nulls++
		}
	}
	return nulls, size
}

func padded(buffer []byte) []byte {
	return append(buffer, make([]byte, -len(buffer)&7)...)
}

// readBody sets in records what the columns say.
func readBody(body []byte, attributes uint16, base int64, records []Record) error {
	there := []int{}
	for number := offsetDeltaColumn; number <= headersColumn; number++ {
		if attributes&(offsetDeltasThere<<number) != 0 {
			there = append(there, number)
		}
	}
	if len(body) < 8*len(there) {
		return errLayout
	}
	table, columns := body[:8*len(there)], buffers(body[8*len(there):])
	for i, number := range there {
		entry := table[8*i:]
		column := buffers(columns.take(int(le.Uint32(entry[4:]))))
		flags := entry[1]
		if int(entry[0]) != number || column == nil && le.Uint32(entry[4:]) > 0 {
			return errLayout
		}
		if err := readColumn(number, flags, column, base, records); err != nil {
			return fmt.Errorf("column %d: %w", number, err)
		}
	}
	if len(columns) > 0 {
		return errLayout
	}
	return nil
}

func readColumn(number int, flags byte, column buffers, base int64, records []Record) error {
	switch number {
	case offsetDeltaColumn:
		deltas := column.take(4 * len(records))
		for i := range records {
			if deltas == nil {
				return errLayout
			}
			records[i].Offset = base + int64(le.Uint32(deltas[4*i:]))
		}
	case timestampColumn:
		times := column.take(8 * len(records))
		for i := range records {
			if times == nil {
				return errLayout
			}
			records[i].Timestamp = int64(le.Uint64(times[8*i:]))
		}
	case keyColumn, valueColumn:
		cells, err := column.cells(len(records), flags&someNull != 0)
		if err != nil {
			return err
		}
		for i := range records {
			if number == keyColumn {
				records[i].Key = cells[i]
			} else {
				records[i].Value = cells[i]
			}
		}
	case headersColumn:
		ends := column.take(4 * (len(records) + 1))
		if ends == nil {
			return errLayout
		}
		count := int(le.Uint32(ends[4*len(records):]))
		names, err := column.cells(count, false)
		if err != nil {
			return err
		}
		values, err := column.cells(count, flags&someHeaderValuesNull != 0)
		if err != nil {
			return err
		}
		for i := range records {
			from, to := int(le.Uint32(ends[4*i:])), int(le.Uint32(ends[4*i+4:]))
			if from > to || to > count {
				return errLayout
			}
			for j := from; j < to; j++ {
				records[i].Headers = append(records[i].Headers, Header{string(names[j]), values[j]})
			}
		}
	}
	if len(column) > 0 {
		return errLayout
	}
	return nil
}

// buffers is what is left of some buffers one after another.
type buffers []byte

// take returns the next buffer without its padding, or nil when there is less.
func (b *buffers) take(size int) []byte {
	whole := size + -size&7
	if size < 0 || whole > len(*b) {
		return nil
	}
	taken := (*b)[:size:size]
	*b = (*b)[whole:]
	return taken
}

// cells returns the next cells, nil where one is null.
func (b *buffers) cells(count int, hasNulls bool) ([][]byte, error) {
	var bitmap []byte
	if hasNulls {
		bitmap = b.take((count + 7) / 8)
	}
	offsets := b.take(4 * (count + 1))
	if offsets == nil || hasNulls && bitmap == nil {
		return nil, errLayout
	}
	data := b.take(int(le.Uint32(offsets[4*count:])))
	cells := make([][]byte, count)
	for i := range cells {
		from, to := int(le.Uint32(offsets[4*i:])), int(le.Uint32(offsets[4*i+4:]))
		if from > to || to > len(data) {
			return nil, errLayout
		}
		if !hasNulls || bitmap[i/8]>>(i%8)&1 != 0 {
			cells[i] = append([]byte{}, data[from:to]...)
		}
	}
	return cells, nil
}
