//go:build tools

// Package tools names the program that is built, so that go.mod keeps its modules.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
