//go:build tools

// Package tools names the program that is built, so that go.mod keeps its modules.
package tools

import _ "github.com/prometheus/prometheus/cmd/prometheus"
