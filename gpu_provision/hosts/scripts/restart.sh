restart && recovers && end changed
end dead "$(complaint)"
